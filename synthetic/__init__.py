"""What is drawn to try everything without a data set: pedestrians in three modalities, and shapes with captions."""
