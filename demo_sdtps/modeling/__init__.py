"""The model: backbone, PIFE, token pruning, SDTPS, HDM and ATMoE, heads; its losses and the names of its weights."""
