//! Choice by weight.

/// Returns the position of the weight at `turn` of a sequence in which each occurs as often as its
/// weight. Returns `None` if all weights are 0.
pub fn weighted_choice(weights: impl Iterator<Item = u32> + Clone, turn: u64) -> Option<usize> {
    let total: u64 = weights.clone().map(u64::from).sum();
    let mut left = turn.checked_rem(total)?;
    for (position, weight) in weights.enumerate() {
        match left.checked_sub(u64::from(weight)) {
            Some(rest) => left = rest,
            None => return Some(position),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choice_follows_the_weights() {
        let mut count = [0_u32; 4];
        for turn in 0..1000 {
            let chosen = weighted_choice([0, 90, 10, 0].into_iter(), turn).expect("a weight");
            count[chosen] += 1;
        }
        assert_eq!(count, [0, 900, 100, 0]);
        assert_eq!(weighted_choice([0, 0].into_iter(), 7), None);
        assert_eq!(weighted_choice([].into_iter(), 7), None);
        assert_eq!(
            weighted_choice([u32::MAX; 3].into_iter(), u64::MAX),
            Some(2)
        );
    }
}
