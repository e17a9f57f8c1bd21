"""The pipeline over processes: one rank per stage, the drafter on a rank of its own or with stage 1.

Read in this order: ``job`` (what the ranks are told and what they make of it), ``transport`` and
``links`` (how messages travel, and what they say), ``worker`` (one rank's cycle) with ``stage`` and
``drafting`` (its roles), ``rank`` (one rank's life), ``launcher`` and ``ranks`` (starting and asking
them), ``watch`` (noticing that one is lost). Every rank drives a replica of the controller with the same
few bytes, so all of them know what happens in a cycle without being told.
"""
