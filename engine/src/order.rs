//! Putting things in the order of a number.
//!
//! It compares nothing else. Invariant: one sort of pairs of numbers serves every type: the standard library's is compiled
//! anew for each, at some 4 KB apiece, and a page downloads them all.

/// Sorts `items` by `number`, smallest first; those of one number keep their order.
pub fn sort_by_number<T>(items: &mut Vec<T>, number: impl Fn(&T) -> u64) {
    let mut order: Vec<(u64, u64)> = items.iter().map(number).zip(0..).collect();
    sort_pairs(&mut order);
    let mut left: Vec<Option<T>> = items.drain(..).map(Some).collect();
    items.extend(order.into_iter().filter_map(|(_, idx)| left[idx as usize].take()));
}

/// Sorts pairs, smallest first.
#[inline(never)]
pub fn sort_pairs(pairs: &mut [(u64, u64)]) {
    pairs.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_come_in_the_order_of_their_numbers_and_equals_as_they_were() {
        let check = |items: &[(u64, char)], expected: &str| {
            let mut items = items.to_vec();
            sort_by_number(&mut items, |(number, _)| *number);
            assert_eq!(items.into_iter().map(|(_, name)| name).collect::<String>(), expected);
        };
        check(&[], "");
        check(&[(3, 'c'), (1, 'a'), (2, 'b')], "abc");
        check(&[(1, 'x'), (0, 'a'), (1, 'y'), (u64::MAX, 'z'), (1, 'w')], "axywz");
    }
}
