"""How we get into a program nobody edited: injection, the probe inside it, gauges beside it."""
