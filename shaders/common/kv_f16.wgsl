// The KV cache in f16: a texel a cell. Keys [row][HEAD_CELLS][BLOCK_SIZE], values [row][BLOCK_SIZE][HEAD_CELLS].
alias KvTexel = vec4<u32>;

fn key_at(row: u32, c: u32, slot: u32) -> u32 {
    return (row * HEAD_CELLS + c) * BLOCK_SIZE + slot;
}

fn value_at(row: u32, slot: u32, c: u32) -> u32 {
    return (row * BLOCK_SIZE + slot) * HEAD_CELLS + c;
}
