"""The probe: what runs inside the watched program. Standard library and torch only, and never in its way.

The training thread only notes moments (`probe_state.put`, a deque); everything else happens in one background
thread (`recorder`), which turns moments into step rows (`steps.state_machine`, pure), samples stacks and writes.
"""
