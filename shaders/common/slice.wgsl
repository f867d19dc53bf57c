// The sum over the 8 lanes of a slice, the same in all of them, in whatever place of a subgroup they are.
fn sum_slice(own: f32) -> f32 {
    let two = own + subgroupShuffleXor(own, 1u);
    let four = two + subgroupShuffleXor(two, 2u);
    return four + subgroupShuffleXor(four, 4u);
}
