// The KV cache in f32: two texels a cell. Keys [row][2][HEAD_CELLS][BLOCK_SIZE], values [row][BLOCK_SIZE][2][HEAD_CELLS].
alias KvTexel = vec4<u32>;

fn key_at(row: u32, c: u32, slot: u32) -> u32 {
    return (row * 2u * HEAD_CELLS + c) * BLOCK_SIZE + slot;
}

fn value_at(row: u32, slot: u32, c: u32) -> u32 {
    return (row * BLOCK_SIZE + slot) * 2u * HEAD_CELLS + c;
}
