//! Tests whether two samples differ.

/// Returns the two-sided p-value of the Mann-Whitney U test, by the normal approximation with tie
/// correction (accurate from about twenty values).
pub(crate) fn mann_whitney(one: &[f64], other: &[f64]) -> f64 {
    let (n1, n2) = (one.len() as f64, other.len() as f64);
    let mut all: Vec<(f64, bool)> = one
        .iter()
        .map(|value| (*value, true))
        .chain(other.iter().map(|value| (*value, false)))
        .collect();
    all.sort_by(|left, right| left.0.total_cmp(&right.0));
    let (mut rank_sum, mut ties, mut at) = (0.0, 0.0, 0);
    while at < all.len() {
        let same = all[at..]
            .iter()
            .take_while(|(value, _)| value.total_cmp(&all[at].0).is_eq())
            .count();
        let rank = at as f64 + (same as f64 + 1.0) / 2.0;
        rank_sum += rank
            * all[at..at + same]
                .iter()
                .filter(|(_, first)| *first)
                .count() as f64;
        ties += (same as f64).powi(3) - same as f64;
        at += same;
    }
    let n = n1 + n2;
    let u = rank_sum - n1 * (n1 + 1.0) / 2.0;
    let deviation = (n1 * n2 / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)))).sqrt();
    let z = ((u - n1 * n2 / 2.0).abs() - 0.5).max(0.0) / deviation;
    complementary_error(z / std::f64::consts::SQRT_2)
}

/// Returns erfc of a non-negative argument, to seven digits (Abramowitz and Stegun, 7.1.26).
fn complementary_error(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let series = [
        0.254_829_592,
        -0.284_496_736,
        1.421_413_741,
        -1.453_152_027,
        1.061_405_429,
    ];
    let sum = series
        .iter()
        .rev()
        .fold(0.0, |sum, factor| (sum + factor) * t);
    sum * (-x * x).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_samples_are_distinguished() {
        // scipy.stats.mannwhitneyu(range(20), [v + 0.5 for v in range(20)]) and (…, [v + 8 for v in
        // range(20)]).
        let base: Vec<f64> = (0..20).map(f64::from).collect();
        let moved = |by: f64| base.iter().map(|value| value + by).collect::<Vec<_>>();
        assert!((mann_whitney(&base, &moved(0.5)) - 0.797_197).abs() < 1e-3);
        assert!((mann_whitney(&base, &moved(8.0)) - 0.000_552).abs() < 1e-4);
    }
}
