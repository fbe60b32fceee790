//! Operations on the allocator and on types built upon it.

use std::fmt::Write as _;

use super::job::{State, spin};
use super::world::{Parcel, World};

/// A vector that grows, and its contents.
pub(super) fn vec(state: &mut State, _: &World) -> bool {
    let (seed, length) = (state.random(), state.below(700) + 1);
    let mut numbers = Vec::new();
    for n in 0..length {
        numbers.push(n ^ seed);
    }
    spin(10);
    (0..length)
        .zip(&numbers)
        .all(|(n, &number)| number == n ^ seed)
        && numbers.len() as u64 == length
}

/// Many small blocks of many sizes.
pub(super) fn boxes(state: &mut State, _: &World) -> bool {
    let seed = state.random();
    let blocks: Vec<Box<[u64]>> = (0..40)
        .map(|n| vec![seed ^ n; n as usize % 13 + 1].into_boxed_slice())
        .collect();
    spin(10);
    (0..40u64)
        .zip(&blocks)
        .all(|(n, block)| block.iter().all(|&word| word == seed ^ n))
}

/// Formatting, splitting, parsing.
pub(super) fn string(state: &mut State, _: &World) -> bool {
    let (seed, context) = (state.random(), state.context);
    let mut text = format!("{context}:");
    for n in 0..20 {
        if write!(text, "{:x};", seed ^ n).is_err() {
            return false;
        }
    }
    spin(10);
    let Some((left, right)) = text.split_once(':') else {
        return false;
    };
    let parsed: Vec<u64> = right
        .split_terminator(';')
        .filter_map(|part| u64::from_str_radix(part, 16).ok())
        .collect();
    left.parse() == Ok(context) && parsed.into_iter().eq((0..20).map(|n| seed ^ n))
}

/// A map that lives from job to job; its values follow from its keys.
pub(super) fn hash_map(state: &mut State, _: &World) -> bool {
    for _ in 0..4 {
        let key = state.below(300);
        state.map.insert(format!("key {key}"), key * 7);
    }
    let (asked, removed) = (state.below(300), state.below(300));
    let found = state.map.get(&format!("key {asked}")).copied();
    let gone = state.map.remove(&format!("key {removed}"));
    found.is_none_or(|value| value == asked * 7)
        && gone.is_none_or(|value| value == removed * 7)
        && !state.map.contains_key(&format!("key {removed}"))
        && state.map.len() <= 300
}

/// Memory that one context allocates and another frees.
pub(super) fn exchange(state: &mut State, world: &World) -> bool {
    let (number, length, slot) = (state.random(), state.below(100) as usize, state.random());
    let theirs = world.exchange(slot, Some(Box::new(Parcel(vec![number; length]))));
    theirs.is_none_or(|parcel| parcel.0.windows(2).all(|pair| pair[0] == pair[1]))
}
