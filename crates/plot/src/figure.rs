//! A figure's content; `draw` decides its looks.

/// One figure, with one line a series.
#[derive(Debug, Clone)]
pub struct Figure {
    /// File name without extension.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The horizontal axis.
    pub x: XAxis,
    /// The vertical axis.
    pub y: YAxis,
    /// What the vertical axis shows, with its unit.
    pub y_label: String,
    /// What the bars at the points are.
    pub bars: &'static str,
    /// The lines.
    pub series: Vec<Series>,
}

/// The horizontal axis of a [`Figure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XAxis {
    /// Offered load in percent, linear from 0 to 100.
    Load,
    /// Quantum in microseconds, logarithmic.
    Quantum,
    /// Anything else, with its unit, logarithmic.
    Logarithmic(&'static str),
    /// Anything else, with its unit, linear from 0.
    Linear(&'static str),
}

/// The vertical axis of a [`Figure`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum YAxis {
    /// Logarithmic.
    Logarithmic,
    /// Percent, linear from 0 to 100.
    Percent,
}

/// One line of a [`Figure`].
#[derive(Debug, Clone)]
pub struct Series {
    /// Name in the legend.
    pub label: String,
    /// Which colour and marker; the same number is the same contender in every figure of a report.
    pub style: Style,
    /// Points by rising x.
    pub points: Vec<Point>,
}

impl Series {
    /// The line of the contender of this number.
    pub fn contender(number: usize, label: impl Into<String>, points: Vec<Point>) -> Self {
        Self {
            label: label.into(),
            style: Style::Contender(number),
            points,
        }
    }
}

/// How a [`Series`] looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// The contender of this number.
    Contender(usize),
    /// What the simulator predicts for a contender, in its colour, without a line in the legend.
    Predicted(usize),
    /// The simulator's floor.
    Floor,
    /// The host's own stalls, which limit every figure from below: a thin level line.
    Stalls,
}

/// One point of a [`Series`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Where it stands on the horizontal axis.
    pub x: f64,
    /// The value; `None` where the point is saturated and so has none.
    pub y: Option<f64>,
    /// Lowest and highest value of a repetition.
    pub spread: Option<(f64, f64)>,
}

impl Point {
    /// A point without a bar.
    pub fn exact(x: f64, y: f64) -> Self {
        Self {
            x,
            y: Some(y),
            spread: None,
        }
    }
}
