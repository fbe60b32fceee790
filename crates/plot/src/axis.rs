//! The axes of a plot: their ranges and their ticks.

/// One axis: the values at its ends, and the ticks between them.
pub(super) struct Axis {
    pub(super) low: f64,
    pub(super) high: f64,
    logarithmic: bool,
    pub(super) ticks: Vec<f64>,
    pub(super) minor: Vec<f64>,
}

impl Axis {
    /// Per cent, from 0 to 100, or further if `values` go further.
    pub(super) fn percent(values: impl Iterator<Item = f64>) -> Self {
        let tens = values.fold(10.0f64, |most, value| most.max((value / 10.0).ceil()));
        let high = tens * 10.0;
        let ticks = (0..=tens as u32).map(|i| f64::from(i) * 10.0).collect();
        Self {
            low: 0.0,
            high,
            logarithmic: false,
            ticks,
            minor: Vec::new(),
        }
    }

    /// From 0 to the first round value above all `values`, in at most ten even steps.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let (_, most) = range(values);
        let step = steps(most / 100.0, most, &[1.0, 2.0, 5.0])
            .into_iter()
            .find(|step| most * 1.02 / step <= 10.0)
            .unwrap_or(most);
        let count = (most * 1.02 / step).ceil() as u32;
        Self {
            low: 0.0,
            high: step * f64::from(count),
            logarithmic: false,
            ticks: (0..=count).map(|at| step * f64::from(at)).collect(),
            minor: Vec::new(),
        }
    }

    /// Quanta: a little room at both ends, ticks at 1, 2 and 5 times powers of ten.
    pub(super) fn quantum(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = range(values);
        Self::between(low / 1.3, high * 1.3, true)
    }

    /// A logarithmic axis that holds all `values`, its ends at 1, 2 or 5 times a power of ten.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = range(values);
        // A margin, so that no marker sits on the frame.
        let nice = steps(low / 10.0, high * 10.0, &[1.0, 2.0, 5.0]);
        let low = nice
            .iter()
            .copied()
            .rfind(|v| *v <= low * 0.97)
            .unwrap_or(low);
        let high = nice
            .iter()
            .copied()
            .find(|v| *v >= high * 1.03)
            .unwrap_or(high);
        Self::between(low, high, (high / low).log10() <= 2.5)
    }

    fn between(low: f64, high: f64, dense: bool) -> Self {
        Self {
            low,
            high,
            logarithmic: true,
            ticks: steps(low, high, if dense { &[1.0, 2.0, 5.0] } else { &[1.0] }),
            minor: steps(low, high, &[2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
        }
    }

    /// Where `value` lies between the ends, 0 to 1.
    pub(super) fn place(&self, value: f64) -> f64 {
        if self.logarithmic {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        }
    }
}

/// The smallest and the largest of the values that a logarithmic axis can show; 1 to 10 if there
/// are none.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let shown = values.filter(|v| *v > 0.0 && v.is_finite());
    shown
        .map(|v| (v, v))
        .reduce(|(low, high), (v, _)| (low.min(v), high.max(v)))
        .unwrap_or((1.0, 10.0))
}

/// The `factors` of every power of ten that lie from `low` to `high`, rising.
fn steps(low: f64, high: f64, factors: &[f64]) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    powers
        .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
        .filter(|value| (low..=high).contains(value))
        .collect()
}

/// A tick's label, with no more digits than needed.
pub(super) fn tick(value: f64) -> String {
    if value >= 1.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}").trim_end_matches('0').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_holds_its_values_and_ends_at_round_ones() {
        let axis = Axis::logarithmic([3.0, 700.0].into_iter());
        assert_eq!((axis.low, axis.high), (2.0, 1000.0));
        assert!(axis.ticks.contains(&10.0) && axis.ticks.contains(&100.0));
        assert!(axis.place(3.0) > 0.0 && axis.place(700.0) < 1.0);
        assert!(
            (axis.place((2.0f64 * 1000.0).sqrt()) - 0.5).abs() < 1e-9,
            "the geometric mean is the middle"
        );
    }

    #[test]
    fn a_load_above_the_capacity_is_on_the_axis() {
        assert_eq!(Axis::percent([20.0, 90.0].into_iter()).high, 100.0);
        let axis = Axis::percent([115.0].into_iter());
        assert_eq!(
            (axis.high, axis.ticks.last().copied()),
            (120.0, Some(120.0))
        );
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_round_steps() {
        let axis = Axis::linear([12_000.0, 87_000.0].into_iter());
        assert_eq!((axis.low, axis.high), (0.0, 90_000.0));
        assert_eq!(axis.ticks.len(), 10);
        assert_eq!(axis.place(45_000.0), 0.5);
    }

    #[test]
    fn an_axis_without_values_still_exists() {
        let axis = Axis::logarithmic(std::iter::empty());
        assert!(axis.low > 0.0 && axis.low < axis.high && axis.high.is_finite());
    }
}
