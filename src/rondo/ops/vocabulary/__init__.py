"""Operations over the vocabulary: log-probabilities of next tokens, whole or divided among ranks, and sampling."""
