//! A picture of a timeline: what each thread ran when.
//!
//! ```text
//!   title
//!   loop 0 ▕long▏▕s▏▕long ▏      a lane a thread, a box each time that a request ran, with a dark
//!                  ╲             end where it was preempted
//!   loop 1 ▕s▏      ▕long  ▏     a line to where a preempted request goes on, if that is elsewhere
//!             ▲                  a mark where a loop took a request from another's queue
//!   waiting ▁▂▁▁                 requests that wait
//!     time
//! ```

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::axis::{Axis, tick};
use crate::draw::register;
use crate::figure::Style;
use crate::marker::{Canvas, Drawn};

const TEXT: RGBColor = RGBColor(0x22, 0x22, 0x22);
const FAINT: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);
const LANE: RGBColor = RGBColor(0xf4, 0xf4, 0xf4);

const WIDTH: i32 = 1100;
const LEFT: i32 = 96;
const RIGHT: i32 = 24;
const TOP: i32 = 76;
const LANE_HEIGHT: i32 = 36;
/// Between two lanes, where lines and marks are.
const LANE_GAP: i32 = 30;
const COUNTER_HEIGHT: i32 = 64;
const BOTTOM: i32 = 56;
const MARK: i32 = 5;

/// What each thread ran in a while. Times are in microseconds from its beginning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Timeline {
    /// Heading.
    pub title: String,
    /// How long the while is.
    pub length_us: f64,
    /// The threads' names.
    pub lanes: Vec<String>,
    /// The classes' names.
    pub classes: Vec<String>,
    /// Each time that a request ran.
    pub slices: Vec<Slice>,
    /// Where a request stopped, and where it went on: a lane and a moment each.
    pub resumptions: Vec<[(usize, f64); 2]>,
    /// Where a loop took a request from another's queue.
    pub taken: Vec<(usize, f64)>,
    /// How many requests waited, from each of these moments on.
    pub waiting: Vec<(f64, f64)>,
}

/// One time that a request ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    /// The thread, by its place in [`Timeline::lanes`].
    pub lane: usize,
    /// The request's class, by its place in [`Timeline::classes`].
    pub class: usize,
    /// From when to when.
    pub from_us: f64,
    /// See `from_us`.
    pub to_us: f64,
    /// Whether it was preempted, and goes on later.
    pub is_preempted: bool,
}

/// The picture as SVG text.
///
/// # Errors
/// If the drawing library fails.
pub fn svg(timeline: &Timeline) -> Result<String> {
    register()?;
    let mut text = String::new();
    let picture = Picture::new(timeline);
    let size = (WIDTH.unsigned_abs(), picture.height().unsigned_abs());
    let canvas = SVGBackend::with_string(&mut text, size).into_drawing_area();
    let drawn = picture.draw(&canvas);
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", timeline.title))?;
    drop(canvas);
    Ok(text)
}

/// Where things go, in pixels.
struct Picture<'a> {
    timeline: &'a Timeline,
    time: Axis,
    most_waiting: f64,
}

impl<'a> Picture<'a> {
    fn new(timeline: &'a Timeline) -> Self {
        let waiting = timeline.waiting.iter().map(|&(_, number)| number);
        Self {
            timeline,
            time: Axis::linear([timeline.length_us / 1.02].into_iter()),
            most_waiting: waiting.fold(1.0, f64::max),
        }
    }

    fn lanes_end(&self) -> i32 {
        TOP + self.timeline.lanes.len() as i32 * (LANE_HEIGHT + LANE_GAP)
    }

    fn height(&self) -> i32 {
        self.lanes_end() + COUNTER_HEIGHT + BOTTOM
    }

    fn at_x(&self, time: f64) -> i32 {
        let width = f64::from(WIDTH - LEFT - RIGHT);
        LEFT + (self.time.place(time.clamp(0.0, self.time.high)) * width).round() as i32
    }

    fn at_lane(lane: usize) -> i32 {
        TOP + lane as i32 * (LANE_HEIGHT + LANE_GAP)
    }

    fn draw<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        canvas.fill(&WHITE)?;
        self.head(canvas)?;
        self.lanes(canvas)?;
        self.slices(canvas)?;
        self.resumptions(canvas)?;
        for &(lane, moment) in &self.timeline.taken {
            let tip = (self.at_x(moment), Self::at_lane(lane) + LANE_HEIGHT + 2);
            taken(canvas, tip)?;
        }
        self.waiting(canvas)?;
        self.times(canvas)?;
        canvas.present()
    }

    /// The title, and below it what the colours and signs are.
    fn head<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        let title = self.timeline.title.clone();
        canvas.draw(&Text::new(title, (LEFT, 14), text(18, HPos::Left)))?;
        let mut x = LEFT;
        let word = |canvas: &Canvas<B>, x: &mut i32, words: &str| -> Drawn<B> {
            let style = text(13, HPos::Left);
            canvas.draw(&Text::new(words.to_owned(), (*x, 44), style))?;
            *x += width(words) + 26;
            Ok(())
        };
        for (class, name) in self.timeline.classes.iter().enumerate() {
            let colour = Style::Contender(class).colour();
            let box_of = [(x, 45), (x + 22, 57)];
            canvas.draw(&Rectangle::new(box_of, colour.mix(0.75).filled()))?;
            x += 28;
            word(canvas, &mut x, name)?;
        }
        let box_of = [(x, 45), (x + 3, 57)];
        canvas.draw(&Rectangle::new(box_of, TEXT.filled()))?;
        x += 9;
        word(canvas, &mut x, "ends preempted")?;
        let line = [(x, 56), (x + 20, 46)];
        canvas.draw(&PathElement::new(line, TEXT.stroke_width(1)))?;
        x += 26;
        word(canvas, &mut x, "goes on elsewhere")?;
        taken(canvas, (x + MARK, 46))?;
        x += 2 * MARK + 6;
        word(canvas, &mut x, "taken from another loop's queue")
    }

    fn lanes<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        for (lane, name) in self.timeline.lanes.iter().enumerate() {
            let top = Self::at_lane(lane);
            let whole = [(LEFT, top), (WIDTH - RIGHT, top + LANE_HEIGHT)];
            canvas.draw(&Rectangle::new(whole, LANE.filled()))?;
            let at = (LEFT - 10, top + LANE_HEIGHT / 2 - 7);
            canvas.draw(&Text::new(name.clone(), at, text(14, HPos::Right)))?;
        }
        Ok(())
    }

    fn slices<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        for slice in &self.timeline.slices {
            let top = Self::at_lane(slice.lane);
            let left = self.at_x(slice.from_us);
            // What is too short for a pixel is seen all the same.
            let right = self.at_x(slice.to_us).max(left + 1);
            let colour = Style::Contender(slice.class).colour();
            let whole = [(left, top), (right, top + LANE_HEIGHT)];
            canvas.draw(&Rectangle::new(whole, colour.mix(0.75).filled()))?;
            if slice.is_preempted {
                let end = [((right - 2).max(left), top), (right, top + LANE_HEIGHT)];
                canvas.draw(&Rectangle::new(end, TEXT.filled()))?;
            }
            let name = self.timeline.classes.get(slice.class);
            if let Some(name) = name.filter(|name| width(name) + 8 < right - left) {
                let at = (left + 4, top + LANE_HEIGHT / 2 - 7);
                let style = text(13, HPos::Left).color(&WHITE);
                canvas.draw(&Text::new(name.clone(), at, style))?;
            }
        }
        Ok(())
    }

    /// Lines from lane to lane; what goes on in its own lane is clear without.
    fn resumptions<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        let elsewhere = (self.timeline.resumptions.iter()).filter(|[from, to]| from.0 != to.0);
        for &[(from, stopped), (to, went_on)] in elsewhere {
            let (upper, lower) = (LANE_HEIGHT + 1, -1);
            let ends = if from < to {
                (upper, lower)
            } else {
                (lower, upper)
            };
            let line = [
                (self.at_x(stopped), Self::at_lane(from) + ends.0),
                (self.at_x(went_on), Self::at_lane(to) + ends.1),
            ];
            canvas.draw(&PathElement::new(line, TEXT.stroke_width(1)))?;
        }
        Ok(())
    }

    fn waiting<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        let bottom = self.lanes_end() + COUNTER_HEIGHT;
        let height = f64::from(COUNTER_HEIGHT - 14);
        let at_y = |number: f64| bottom - (number / self.most_waiting * height).round() as i32;
        for (number, y) in [(0.0, bottom), (self.most_waiting, at_y(self.most_waiting))] {
            let line = [(LEFT, y), (WIDTH - RIGHT, y)];
            canvas.draw(&PathElement::new(line, FAINT.stroke_width(1)))?;
            let label = format!("{number:.0} waiting");
            let at = (LEFT - 10, y - 7);
            canvas.draw(&Text::new(label, at, text(12, HPos::Right)))?;
        }
        let mut steps = Vec::new();
        for (place, &(from, number)) in self.timeline.waiting.iter().enumerate() {
            let next = self.timeline.waiting.get(place + 1);
            let until = next.map_or(self.timeline.length_us, |&(until, _)| until);
            steps.extend([from, until].map(|time| (self.at_x(time), at_y(number))));
        }
        canvas.draw(&PathElement::new(steps, TEXT.stroke_width(2)))
    }

    fn times<B: DrawingBackend>(&self, canvas: &Canvas<B>) -> Drawn<B> {
        let bottom = self.lanes_end() + COUNTER_HEIGHT;
        for &time in &self.time.ticks {
            let x = self.at_x(time);
            let line = [(x, bottom), (x, bottom + 5)];
            canvas.draw(&PathElement::new(line, TEXT.stroke_width(1)))?;
            let at = (x, bottom + 9);
            canvas.draw(&Text::new(tick(time), at, text(13, HPos::Center)))?;
        }
        let middle = (LEFT + WIDTH - RIGHT) / 2;
        let at = (middle, bottom + 30);
        canvas.draw(&Text::new("time (µs)", at, text(14, HPos::Center)))
    }
}

/// The mark's tip points up, at what was taken.
fn taken<B: DrawingBackend>(canvas: &Canvas<B>, (x, y): (i32, i32)) -> Drawn<B> {
    let triangle = vec![(x, y), (x - MARK, y + 2 * MARK), (x + MARK, y + 2 * MARK)];
    canvas.draw(&Polygon::new(triangle, Style::Stalls.colour().filled()))
}

fn text(size: i32, horizontal: HPos) -> TextStyle<'static> {
    ("sans-serif", size)
        .into_font()
        .color(&TEXT)
        .pos(Pos::new(horizontal, VPos::Top))
}

fn width(words: &str) -> i32 {
    let drawn = ("sans-serif", 13).into_font().box_size(words);
    drawn.map_or(0, |(width, _)| width as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let slice = |lane, class, from_us, to_us, is_preempted| Slice {
            lane,
            class,
            from_us,
            to_us,
            is_preempted,
        };
        Timeline {
            title: "a run <1>".to_owned(),
            length_us: 100.0,
            lanes: vec!["loop 0".to_owned(), "loop 1".to_owned()],
            classes: vec!["short".to_owned(), "long".to_owned()],
            slices: vec![
                slice(0, 1, 0.0, 40.0, true),
                slice(0, 0, 40.0, 40.001, false),
                slice(1, 1, 50.0, 90.0, false),
            ],
            resumptions: vec![[(0, 40.0), (1, 50.0)], [(0, 40.0), (0, 60.0)]],
            taken: vec![(1, 50.0)],
            waiting: vec![(0.0, 1.0), (45.0, 3.0)],
        }
    }

    #[test]
    fn everything_is_in_the_picture() {
        let drawn = svg(&timeline()).unwrap();
        for words in [
            "a run &lt;1&gt;",
            "loop 1",
            "long",
            "3 waiting",
            "time (µs)",
        ] {
            assert!(drawn.contains(words), "{words} is not in it");
        }
        // The picture's own, two lanes, three slices, one preempted, and in the legend two classes
        // and the sign of a preemption.
        assert_eq!(drawn.matches("<rect").count(), 1 + 2 + 3 + 1 + 3);
        assert_eq!(
            drawn.matches("<polygon").count(),
            2,
            "one mark, and the legend's"
        );
    }

    #[test]
    fn each_lane_makes_it_higher_and_nothing_leaves_it() {
        let (two, mut timeline) = (timeline(), timeline());
        timeline.lanes.push("loop 2".to_owned());
        timeline.slices[2].to_us = 1e9;
        let picture = Picture::new(&timeline);
        assert!(picture.height() > Picture::new(&two).height());
        assert_eq!(picture.at_x(1e9), WIDTH - RIGHT);
        assert!(svg(&timeline).is_ok());
        assert!(svg(&Timeline::default()).is_ok());
    }
}
