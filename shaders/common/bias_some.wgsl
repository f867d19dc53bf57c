// One number a column.
fn bias_at(column: u32) -> f32 {
    return bias[column];
}
