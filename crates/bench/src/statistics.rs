//! Medians, ratios and percentiles.

/// Returns the middle of `values`, or the mean of the two in the middle. NaN if there is none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => sorted[len / 2],
        len => f64::midpoint(sorted[len / 2 - 1], sorted[len / 2]),
    }
}

/// Returns the median of the rounds' ratios. `None` if a side was not measured.
pub(crate) fn ratio(over: &[f64], under: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = over.iter().zip(under).map(|(over, under)| over / under).collect();
    Some(median(&ratios)).filter(|ratio| ratio.is_finite())
}

/// Returns the least of the sorted values that `share` of them do not exceed; 0 if there is none.
pub(crate) fn percentile(sorted: &[u64], share: f64) -> u64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_with_one_bad_round_ignores_it() {
        assert_eq!(median(&[10.0, 11.0, 0.1, 10.5, 90.0]), 10.5);
        assert_eq!(median(&[1.0, 3.0]), 2.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn ratio_of_a_slow_round_is_that_of_the_others() {
        assert_eq!(ratio(&[1.0, 10.0, 1.0], &[2.0, 20.0, 2.0]), Some(0.5));
        assert_eq!(ratio(&[], &[]), None);
    }

    #[test]
    fn percentile_is_one_of_the_values() {
        let values: Vec<u64> = (1..=1000).collect();
        assert_eq!([0.5, 0.99, 0.999].map(|share| percentile(&values, share)), [500, 990, 999]);
        assert_eq!(percentile(&[7], 0.999), 7);
        assert_eq!(percentile(&[], 0.5), 0);
    }
}
