"""What agents believe and why: claims with evidence, and labels that follow from the log."""
