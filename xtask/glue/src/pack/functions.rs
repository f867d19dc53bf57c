//! Which functions stay, and in which order.
//!
//! It changes no function but for the numbers of those that it calls. Invariant: a number stands for a function that does
//! what the one that had it did.

use std::collections::HashMap;
use std::convert::Infallible;

use wasm_encoder::reencode::{Error, Reencode};
use wasmparser::FunctionBody;

/// Bytes in a row that two functions may have in common.
const RUN: usize = 6;
/// A run in more functions than this says nothing about their likeness.
const MOST_HOLDERS: usize = 400;
/// How much of a function's likeness to the one before is left one place further on: gzip looks back over 32 KB, which are
/// some functions.
const FADING: f32 = 0.8;
/// Below this, a likeness is none.
const FADED: f32 = 0.01;
/// Added to the runs of a function that its likeness is divided by: short ones would be like everything.
const SHORT: f32 = 16.0;

/// Where each function goes.
pub struct Functions {
    /// By the number that it had, the number that it gets: imported ones first, as they were.
    pub numbers: Vec<u32>,
    /// The module's own that stay, by their place among these as it was, in their new order.
    pub order: Vec<u32>,
}

impl Functions {
    /// Of functions that are equal one stays, and those that are alike come one after the other.
    pub fn arranged(
        imports: u32,
        types: &[u32],
        bodies: &[FunctionBody<'_>],
    ) -> Result<Self, Error<Infallible>> {
        let same_number = vec![0; imports as usize + bodies.len()];
        let shapes = bodies.iter().map(|body| renumbered(body, &same_number));
        let mut shapes = shapes.collect::<Result<Vec<_>, _>>()?;
        let equals = merged(imports, types, bodies, &shapes)?;
        let own = (imports..).zip(0..bodies.len());
        let kept = own.filter(|(number, _)| equals[*number as usize] == *number).map(|(_, idx)| idx);
        let kept: Vec<usize> = kept.collect();
        let shapes: Vec<Vec<u8>> = kept.iter().map(|idx| std::mem::take(&mut shapes[*idx])).collect();
        let order: Vec<u32> = side_by_side(&shapes).into_iter().map(|at| kept[at] as u32).collect();
        let mut new: Vec<u32> = (0..).take(equals.len()).collect();
        for (number, idx) in (imports..).zip(&order) {
            new[(imports + idx) as usize] = number;
        }
        Ok(Self { numbers: equals.into_iter().map(|number| new[number as usize]).collect(), order })
    }
}

/// A function with other numbers for those that it calls, as bytes.
pub fn renumbered(body: &FunctionBody<'_>, numbers: &[u32]) -> Result<Vec<u8>, Error<Infallible>> {
    struct Renumbering<'n>(&'n [u32]);
    impl Reencode for Renumbering<'_> {
        type Error = Infallible;

        fn function_index(&mut self, number: u32) -> Result<u32, Error<Infallible>> {
            Ok(self.0[number as usize])
        }
    }
    let mut renumbering = Renumbering(numbers);
    let mut function = renumbering.new_function_with_parsed_locals(body)?;
    let mut reader = body.get_operators_reader()?;
    while !reader.eof() {
        function.instruction(&renumbering.parse_instruction(&mut reader)?);
    }
    Ok(function.into_raw_body())
}

/// By each function's number, that of the first which is equal to it. Those that differ only in which of two equal ones they
/// call are equal in turn.
fn merged(
    imports: u32,
    types: &[u32],
    bodies: &[FunctionBody<'_>],
    shapes: &[Vec<u8>],
) -> Result<Vec<u32>, Error<Infallible>> {
    let mut of_shape: HashMap<(u32, &[u8]), u32> = HashMap::new();
    for (of_type, shape) in types.iter().zip(shapes) {
        *of_shape.entry((*of_type, shape)).or_default() += 1;
    }
    // What has no other of its shape is equal to none.
    let may_be: Vec<usize> =
        (0..bodies.len()).filter(|idx| of_shape[&(types[*idx], &shapes[*idx][..])] > 1).collect();
    let mut numbers: Vec<u32> = (0..imports).chain((imports..).take(bodies.len())).collect();
    loop {
        let mut first = HashMap::new();
        let mut found = numbers.clone();
        for idx in may_be.iter().copied() {
            let number = imports + idx as u32;
            let bytes = renumbered(&bodies[idx], &numbers)?;
            found[number as usize] = *first.entry((types[idx], bytes)).or_insert(number);
        }
        if found == numbers {
            return Ok(numbers);
        }
        numbers = found;
    }
}

/// An order in which each comes soon after those that it has most runs of bytes in common with.
fn side_by_side(shapes: &[Vec<u8>]) -> Vec<usize> {
    let mut holders: HashMap<&[u8], Vec<usize>> = HashMap::new();
    for (at, shape) in shapes.iter().enumerate() {
        for run in shape.windows(RUN) {
            let holders = holders.entry(run).or_default();
            // All runs of one function come together: it is the last one wherever it is there already.
            if holders.last() != Some(&at) {
                holders.push(at);
            }
        }
    }
    // Of each, who else holds a run of it, for all its runs.
    let mut others: Vec<Vec<&[usize]>> = vec![Vec::new(); shapes.len()];
    let mut runs = vec![SHORT; shapes.len()];
    for holders in holders.values() {
        for at in holders {
            runs[*at] += 1.0;
            if (2..MOST_HOLDERS).contains(&holders.len()) {
                others[*at].push(holders);
            }
        }
    }
    let mut likeness = vec![0.0_f32; shapes.len()];
    let mut left: Vec<usize> = (0..shapes.len()).collect();
    let mut order = Vec::with_capacity(shapes.len());
    // Of several that are as like, the first as they were.
    let next = |left: &[usize], likeness: &[f32]| {
        let share = |place: &usize| likeness[left[*place]] / runs[left[*place]];
        (0..left.len()).rev().max_by(|a, b| share(a).total_cmp(&share(b)))
    };
    while let Some(place) = next(&left, &likeness) {
        let at = left.remove(place);
        order.push(at);
        for likeness in &mut likeness {
            *likeness = if *likeness < FADED { 0.0 } else { *likeness * FADING };
        }
        for holder in others[at].iter().copied().flatten() {
            likeness[*holder] += 1.0;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_comes_one_after_the_other_and_nothing_is_lost() {
        let shapes =
            ["a long beginning and one end", "something else entirely", "a long beginning and two ends"];
        let shapes = shapes.map(|text| text.as_bytes().to_vec());
        assert_eq!(side_by_side(&shapes), [0, 2, 1]);
        let none_alike = ["", "0123456", "abcdefgh"].map(|text| text.as_bytes().to_vec());
        assert_eq!(side_by_side(&none_alike), [0, 1, 2], "as they were");
    }
}
