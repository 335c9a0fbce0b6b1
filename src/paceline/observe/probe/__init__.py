"""The probe: what runs inside the watched program. Standard library and torch only, and never in its way.

The training thread only notes moments (`gate.put`, a deque); everything else happens in one background
thread (`scribe`), which turns moments into step rows (`automaton`, pure), samples stacks and writes.
"""
