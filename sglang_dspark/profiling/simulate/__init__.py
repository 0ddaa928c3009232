"""What another policy, table or concurrency would have done on recorded traffic.

A trace is replayed with the planner's own code; only time and outcomes are not measured. Time is
the cost table's, plus the engine's own time between steps as the trace shows it. Outcomes are the
recorded ones: after each step a request goes on to its next recorded block, whatever the policy
committed (and to its first one again when it has used them up), until it has committed as many
tokens as it did in the trace. So a policy that commits less sees the same kind of blocks, not the
very blocks that would have come. That is the usual approximation, and the reason why differences
of a few percent should be measured.
"""
