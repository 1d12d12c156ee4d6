"""What demo-sdtps study runs for docs/, scores that are only measured there, and further measurements."""
