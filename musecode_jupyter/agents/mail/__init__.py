"""Mail between agents: what is on its way, what may be told to whom and when, and the box that sends and delivers."""
