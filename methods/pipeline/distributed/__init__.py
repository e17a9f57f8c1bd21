"""The pipeline over processes: one rank per stage, the drafter on a rank of its own or with stage 1.

Read in this order: ``layout`` (who is who), ``job`` (what the ranks are told), ``messages`` and
``channel`` (what travels), ``prompt_pass`` (the prefill), ``worker`` (one rank's cycle),
``rank_process`` (one rank's life), ``ranks`` (starting, watching and asking them). Every rank
drives a replica of the controller with the same few bytes, so all of them know what happens in a
cycle without being told.
"""
