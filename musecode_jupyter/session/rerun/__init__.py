"""Runs the real code again on what a journal holds, and says where it would act otherwise."""
