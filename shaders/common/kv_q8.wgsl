// The KV cache in 8 bits: half a texel a cell, 4 signed bytes a word. Keys [row][HEAD_CELLS + 1][BLOCK_SIZE], where the cell
// behind the last holds two scales in f32, the key's and the value's; values [row][BLOCK_SIZE][HEAD_CELLS].
alias KvTexel = vec2<u32>;

fn key_at(row: u32, c: u32, slot: u32) -> u32 {
    return (row * (HEAD_CELLS + 1u) + c) * BLOCK_SIZE + slot;
}

fn value_at(row: u32, slot: u32, c: u32) -> u32 {
    return (row * BLOCK_SIZE + slot) * HEAD_CELLS + c;
}
