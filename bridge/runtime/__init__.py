"""Operations on tasks, and one worker for each context."""
