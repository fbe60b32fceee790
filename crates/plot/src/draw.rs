//! Draws a [`Figure`] as SVG and as PNG.
//!
//! The same code draws both, in pixels; a PNG is the same picture at twice the size, for sharp
//! print.
//!
//! ```text
//!   title
//!   +--------------------------+
//!   | saturated: a row a series|  legend
//!   +--------------------------+
//!   | the plot                 |
//!   +--------------------------+
//!     x axis
//! ```

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::axis::{Axis, tick};
use crate::figure::{Figure, Point, Series, Style, XAxis, YAxis};
use crate::marker::{Canvas, Drawn};

const TEXT: RGBColor = RGBColor(0x22, 0x22, 0x22);
const AXIS: RGBColor = RGBColor(0x66, 0x66, 0x66);
const GRID: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);
const MINOR_GRID: RGBColor = RGBColor(0xe8, 0xe8, 0xe8);
const STRIP: RGBColor = RGBColor(0xf2, 0xf2, 0xf2);

const WIDTH: i32 = 960;
const HEIGHT: i32 = 500;
const LEFT: i32 = 84;
const RIGHT: i32 = 250;
const TOP: i32 = 48;
const BOTTOM: i32 = 60;
/// Height of a row of the strip for saturated points.
const ROW: i32 = 17;
/// The gap between that strip and the plot.
const GAP: i32 = 8;
const MARKER: i32 = 4;

/// The figure as SVG text.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(figure: &Figure) -> Result<String> {
    let mut text = String::new();
    let layout = Layout::new(figure, 1);
    draw(
        figure,
        &layout,
        SVGBackend::with_string(&mut text, layout.size()),
    )?;
    Ok(text)
}

/// Writes the figure as a PNG file.
///
/// # Errors
/// If the drawing library fails or the file cannot be written.
pub fn png(figure: &Figure, path: &Path) -> Result<()> {
    let layout = Layout::new(figure, 2);
    draw(figure, &layout, BitMapBackend::new(path, layout.size()))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Registers the bundled font under the generic name, so that SVGs say `sans-serif`, which every
/// viewer has.
pub(crate) fn register() -> Result<()> {
    static FONT: OnceLock<bool> = OnceLock::new();
    let font = include_bytes!("../assets/LiberationSans-Regular.ttf");
    let known = FONT.get_or_init(|| register_font("sans-serif", FontStyle::Normal, font).is_ok());
    ensure!(known, "the bundled font is damaged");
    Ok(())
}

fn draw<B: DrawingBackend>(figure: &Figure, layout: &Layout, backend: B) -> Result<()> {
    register()?;
    let canvas = backend.into_drawing_area();
    let drawn: Drawn<B> = (|| {
        canvas.fill(&WHITE)?;
        layout.frame(&canvas, figure)?;
        for series in &figure.series {
            layout.lines(&canvas, series)?;
        }
        // Markers come last, so that no line crosses them.
        for series in &figure.series {
            layout.markers(&canvas, series)?;
        }
        layout.legend(&canvas, figure)?;
        canvas.present()
    })();
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", figure.name))
}

/// Where things go, in pixels.
struct Layout {
    scale: i32,
    width: i32,
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
    height: i32,
    x: Axis,
    y: Axis,
    /// Names of the series with saturated points: each has a row above `top`.
    saturated: Vec<String>,
}

impl Layout {
    fn new(figure: &Figure, scale: i32) -> Self {
        let points = || figure.series.iter().flat_map(|series| &series.points);
        let values = points().flat_map(|p| {
            p.y.into_iter()
                .chain(p.spread.into_iter().flat_map(|(a, b)| [a, b]))
        });
        let saturated: Vec<String> = figure
            .series
            .iter()
            .filter(|series| series.points.iter().any(|point| point.y.is_none()))
            .map(|series| series.label.clone())
            .collect();
        let rows = saturated.len() as i32;
        let strip = if rows == 0 { 0 } else { ROW * rows + GAP };
        Self {
            scale,
            width: width(figure, &notes(figure, !saturated.is_empty())) * scale,
            left: LEFT * scale,
            right: (WIDTH - RIGHT) * scale,
            top: (TOP + strip) * scale,
            bottom: (HEIGHT + strip - BOTTOM) * scale,
            height: (HEIGHT + strip) * scale,
            x: match figure.x {
                XAxis::Load => Axis::percent(points().map(|p| p.x)),
                XAxis::Quantum | XAxis::Logarithmic(_) => Axis::quantum(points().map(|p| p.x)),
                XAxis::Linear(_) => Axis::linear(points().map(|p| p.x)),
            },
            y: match figure.y {
                YAxis::Logarithmic => Axis::logarithmic(values),
                YAxis::Percent => Axis::percent(std::iter::empty()),
            },
            saturated,
        }
    }

    fn size(&self) -> (u32, u32) {
        (self.width.unsigned_abs(), self.height.unsigned_abs())
    }

    fn at_x(&self, x: f64) -> i32 {
        self.left + (self.x.place(x) * f64::from(self.right - self.left)).round() as i32
    }

    fn at_y(&self, y: f64) -> i32 {
        self.bottom - (self.y.place(y) * f64::from(self.bottom - self.top)).round() as i32
    }

    /// The centre of a point's marker: in the plot or, if the point is saturated, in its series'
    /// row above.
    fn at(&self, series: &Series, point: &Point) -> (i32, i32) {
        let y = match point.y {
            Some(y) => self.at_y(y),
            None => {
                let row = self
                    .saturated
                    .iter()
                    .position(|label| *label == series.label)
                    .unwrap_or(0) as i32;
                self.top - (GAP + ROW * row + ROW / 2) * self.scale
            }
        };
        (self.at_x(point.x), y)
    }

    fn text<'a>(&self, size: i32, horizontal: HPos, vertical: VPos) -> TextStyle<'a> {
        ("sans-serif", size * self.scale)
            .into_font()
            .color(&TEXT)
            .pos(Pos::new(horizontal, vertical))
    }

    fn frame<B: DrawingBackend>(&self, canvas: &Canvas<B>, figure: &Figure) -> Drawn<B> {
        let scale = self.scale;
        let thin = |colour: RGBColor| colour.stroke_width(scale.unsigned_abs());
        let across = |y: i32| [(self.left, y), (self.right, y)];
        let up = |x: i32| [(x, self.top), (x, self.bottom)];
        let write = |text: String, at: (i32, i32), style: TextStyle<'_>| {
            canvas.draw(&Text::new(text, at, style))
        };

        write(
            figure.title.clone(),
            (self.left, 14 * scale),
            self.text(18, HPos::Left, VPos::Top),
        )?;
        if !self.saturated.is_empty() {
            let end = self.top - GAP * scale;
            let strip = [(self.left, TOP * scale), (self.right, end)];
            canvas.draw(&Rectangle::new(strip, STRIP.filled()))?;
            let middle = (TOP * scale + end) / 2;
            write(
                "saturated".into(),
                (self.left - 8 * scale, middle),
                self.text(13, HPos::Right, VPos::Center),
            )?;
        }
        for y in &self.y.minor {
            canvas.draw(&PathElement::new(across(self.at_y(*y)), thin(MINOR_GRID)))?;
        }
        for x in &self.x.minor {
            canvas.draw(&PathElement::new(up(self.at_x(*x)), thin(MINOR_GRID)))?;
        }
        for &y in &self.y.ticks {
            canvas.draw(&PathElement::new(across(self.at_y(y)), thin(GRID)))?;
            let at = (self.left - 8 * scale, self.at_y(y));
            write(tick(y), at, self.text(13, HPos::Right, VPos::Center))?;
        }
        for &x in &self.x.ticks {
            canvas.draw(&PathElement::new(up(self.at_x(x)), thin(GRID)))?;
            let at = (self.at_x(x), self.bottom + 8 * scale);
            write(tick(x), at, self.text(13, HPos::Center, VPos::Top))?;
        }
        let corners = [(self.left, self.top), (self.right, self.bottom)];
        canvas.draw(&Rectangle::new(corners, thin(AXIS)))?;

        let x_label = match figure.x {
            XAxis::Load => "offered load (% of the workers' capacity)",
            XAxis::Quantum => "quantum (µs, log)",
            XAxis::Logarithmic(label) | XAxis::Linear(label) => label,
        };
        let middle = ((self.left + self.right) / 2, (self.top + self.bottom) / 2);
        write(
            x_label.into(),
            (middle.0, self.bottom + 32 * scale),
            self.text(15, HPos::Center, VPos::Top),
        )?;
        let upright = self
            .text(15, HPos::Center, VPos::Top)
            .transform(FontTransform::Rotate270);
        write(figure.y_label.clone(), (14 * scale, middle.1), upright)
    }

    fn lines<B: DrawingBackend>(&self, canvas: &Canvas<B>, series: &Series) -> Drawn<B> {
        let stroke = series
            .style
            .colour()
            .stroke_width(2 * self.scale.unsigned_abs());
        let hair = series
            .style
            .colour()
            .mix(0.6)
            .stroke_width(self.scale.unsigned_abs());
        for pair in series.points.windows(2) {
            let ends = [self.at(series, &pair[0]), self.at(series, &pair[1])];
            match (pair[0].y, pair[1].y, series.style) {
                (Some(_), Some(_), Style::Contender(_)) => {
                    canvas.draw(&PathElement::new(ends, stroke))?
                }
                (Some(_), Some(_), Style::Predicted(_)) => self.dashes(canvas, ends, hair)?,
                (Some(_), Some(_), Style::Stalls) => canvas.draw(&PathElement::new(ends, hair))?,
                // The line into saturation is no measurement, so it is dashed.
                (Some(_), None, _) | (None, Some(_), _) => self.dashes(canvas, ends, hair)?,
                (Some(_), Some(_), Style::Floor) => self.dashes(canvas, ends, stroke)?,
                (None, None, _) => {}
            }
        }
        let cap = 3 * self.scale;
        for point in &series.points {
            if let (Some(_), Some((low, high))) = (point.y, point.spread) {
                let (x, low, high) = (self.at_x(point.x), self.at_y(low), self.at_y(high));
                canvas.draw(&PathElement::new([(x, low), (x, high)], hair))?;
                for y in [low, high] {
                    canvas.draw(&PathElement::new([(x - cap, y), (x + cap, y)], hair))?;
                }
            }
        }
        Ok(())
    }

    fn dashes<B: DrawingBackend>(
        &self,
        canvas: &Canvas<B>,
        [from, to]: [(i32, i32); 2],
        style: ShapeStyle,
    ) -> Drawn<B> {
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let count = (dx.hypot(dy) / f64::from(5 * self.scale)).round().max(1.0);
        let on_the_way = |step: f64| {
            let part = (step / count).min(1.0);
            (
                from.0 + (dx * part).round() as i32,
                from.1 + (dy * part).round() as i32,
            )
        };
        let mut step = 0.0;
        while step < count {
            canvas.draw(&PathElement::new(
                [on_the_way(step), on_the_way(step + 1.0)],
                style,
            ))?;
            step += 2.0;
        }
        Ok(())
    }

    fn markers<B: DrawingBackend>(&self, canvas: &Canvas<B>, series: &Series) -> Drawn<B> {
        let radius = MARKER * self.scale;
        if matches!(series.style, Style::Predicted(_)) {
            return Ok(());
        }
        for point in &series.points {
            let centre = self.at(series, point);
            match point.y {
                Some(_) => series.style.mark(canvas, centre, radius)?,
                None => series.style.mark_saturated(
                    canvas,
                    centre,
                    radius,
                    self.scale.unsigned_abs(),
                )?,
            }
        }
        Ok(())
    }

    fn legend<B: DrawingBackend>(&self, canvas: &Canvas<B>, figure: &Figure) -> Drawn<B> {
        let scale = self.scale;
        let (left, mut y) = (self.right + 20 * scale, (TOP + 8) * scale);
        let style = self.text(14, HPos::Left, VPos::Center);
        let predicted = |series: &&Series| matches!(series.style, Style::Predicted(_));
        for series in figure.series.iter().filter(|series| !predicted(series)) {
            let line = [(left, y), (left + 30 * scale, y)];
            let stroke = series.style.colour().stroke_width(2 * scale.unsigned_abs());
            match series.style {
                Style::Contender(_) => canvas.draw(&PathElement::new(line, stroke))?,
                Style::Stalls => {
                    let hair = series.style.colour().mix(0.6);
                    let hair = hair.stroke_width(scale.unsigned_abs());
                    canvas.draw(&PathElement::new(line, hair))?;
                }
                Style::Predicted(_) | Style::Floor => self.dashes(canvas, line, stroke)?,
            }
            series
                .style
                .mark(canvas, (left + 15 * scale, y), MARKER * scale)?;
            canvas.draw(&Text::new(
                series.label.clone(),
                (left + 40 * scale, y),
                style.clone(),
            ))?;
            y += 23 * scale;
        }
        let small = self.text(12, HPos::Left, VPos::Center);
        y += 6 * scale;
        for note in notes(figure, !self.saturated.is_empty()) {
            canvas.draw(&Text::new(note, (left, y), small.clone()))?;
            y += 18 * scale;
        }
        Ok(())
    }
}

/// The legend's notes below the series.
fn notes(figure: &Figure, saturated: bool) -> Vec<String> {
    let mut points = figure.series.iter().flat_map(|series| &series.points);
    let mut notes = Vec::new();
    if points.any(|point| point.spread.is_some()) {
        notes.push(format!("bars: {}", figure.bars));
    }
    if (figure.series.iter()).any(|series| matches!(series.style, Style::Predicted(_))) {
        notes.push("thin dashes: simulated, with the".to_owned());
        notes.push("costs measured in this run".to_owned());
    }
    if saturated {
        notes.push("hollow: saturated, no value".to_owned());
    }
    notes
}

/// The picture's width, before scaling: the usual one, or as much as the title and the legend need.
fn width(figure: &Figure, notes: &[String]) -> i32 {
    let legend = WIDTH - RIGHT;
    let labels = figure
        .series
        .iter()
        .map(|series| (legend + 60, series.label.as_str(), 14));
    let notes = notes.iter().map(|note| (legend + 20, note.as_str(), 12));
    let title = [(LEFT, figure.title.as_str(), 18)];
    labels
        .chain(notes)
        .chain(title)
        .map(|(at, text, size)| at + text_width(text, size) + 10)
        .fold(WIDTH, i32::max)
}

fn text_width(text: &str, size: i32) -> i32 {
    // Without the font nothing is drawn either, and that reports it.
    let drawn = register().and_then(|()| Ok(("sans-serif", size).into_font().box_size(text)?));
    drawn.map_or(0, |(width, _)| width as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saturated_points_lie_above_the_plot_and_take_no_part_in_its_range() {
        let point = |x, y| Point { x, y, spread: None };
        let series = Series {
            label: "c-FCFS".into(),
            style: Style::Contender(0),
            points: vec![point(20.0, Some(10.0)), point(90.0, None)],
        };
        let figure = Figure {
            name: "f".into(),
            title: "t".into(),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "y".into(),
            bars: "spread",
            series: vec![series.clone()],
        };
        let layout = Layout::new(&figure, 1);
        assert!(layout.at(&series, &series.points[1]).1 < layout.top);
        assert!(layout.at(&series, &series.points[0]).1 > layout.top);
        assert!(svg(&figure).unwrap().contains("saturated"));
    }

    #[test]
    fn a_long_name_widens_the_picture_instead_of_leaving_it() {
        let figure = |label: &str| Figure {
            name: "f".into(),
            title: "t".into(),
            x: XAxis::Load,
            y: YAxis::Logarithmic,
            y_label: "y".into(),
            bars: "spread",
            series: vec![Series {
                label: label.into(),
                style: Style::Contender(0),
                points: Vec::new(),
            }],
        };
        let usual = Layout::new(&figure("c-PRE-SQ escalation 5 µs"), 1).size();
        let wide = Layout::new(&figure(&"very long ".repeat(10)), 1).size();
        assert_eq!(usual.0, WIDTH.unsigned_abs());
        assert!(wide.0 > usual.0);
    }
}
