"""May it? The gate in front of every model call, the policy for actions, and the user's approvals."""
