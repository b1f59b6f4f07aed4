"""The reviewer: findings about a change, what becomes of them, and which of them stop a landing."""
