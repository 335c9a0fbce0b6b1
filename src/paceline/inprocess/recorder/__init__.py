"""The recorder inside the watched program. It uses only the standard library and torch.

The training thread only adds events to a deque (`probe_state.put`). All other work happens in one background thread
(`recorder`), which converts events into step rows (`steps.state_machine`, a pure function), samples stacks and writes.
"""
