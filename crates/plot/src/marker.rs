//! Colours and marker shapes: every contender differs from every other in both, so that a plot can
//! be read in black and white, and by those who see colours differently.

use std::f64::consts::SQRT_2;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::figure::Style;

/// A drawing area in pixels.
pub(super) type Canvas<B> = DrawingArea<B, Shift>;

/// Okabe and Ito's palette for readers with any colour vision, less its yellow (too faint on
/// white), with a dark first colour and two more at the end.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x7b, 0x4f, 0xa3),
    RGBColor(0x8c, 0x6d, 0x31),
];
const FLOOR: RGBColor = RGBColor(0x88, 0x88, 0x88);
const STALLS: RGBColor = RGBColor(0xa0, 0x1c, 0x1c);

/// The shapes, as many as there are colours.
const SHAPES: [Shape; 9] = [
    Shape::Polygon {
        corners: 4,
        turn: 0.125,
    },
    Shape::Polygon {
        corners: 3,
        turn: 0.0,
    },
    Shape::Circle,
    Shape::Polygon {
        corners: 4,
        turn: 0.0,
    },
    Shape::Polygon {
        corners: 3,
        turn: 0.5,
    },
    Shape::Star { rays: 5 },
    Shape::Polygon {
        corners: 6,
        turn: 0.0,
    },
    Shape::Cross { turn: 0.0 },
    Shape::Cross { turn: 0.125 },
];

#[derive(Clone, Copy)]
enum Shape {
    Circle,
    /// A regular polygon; `turn` in revolutions from a corner pointing up.
    Polygon {
        corners: u32,
        turn: f64,
    },
    /// A star of that many points.
    Star {
        rays: u32,
    },
    /// Two bars; `turn` in revolutions from upright.
    Cross {
        turn: f64,
    },
}

impl Style {
    /// The colour of lines and markers.
    pub(super) fn colour(self) -> RGBColor {
        match self {
            // Past the palette the colours repeat, with another shape.
            Self::Contender(number) | Self::Predicted(number) => COLOURS[number % COLOURS.len()],
            Self::Floor => FLOOR,
            Self::Stalls => STALLS,
        }
    }

    fn shape(self) -> Option<Shape> {
        match self {
            Self::Contender(number) | Self::Predicted(number) => {
                Some(SHAPES[(number + number / SHAPES.len()) % SHAPES.len()])
            }
            Self::Floor | Self::Stalls => None,
        }
    }

    /// Draws the marker with its centre at `centre`, filled.
    pub(super) fn mark<B: DrawingBackend>(
        self,
        canvas: &Canvas<B>,
        centre: (i32, i32),
        radius: i32,
    ) -> Drawn<B> {
        self.paint(canvas, centre, radius, self.colour().filled())
    }

    /// Draws the marker hollow and a little larger: the sign of a saturated point.
    pub(super) fn mark_saturated<B: DrawingBackend>(
        self,
        canvas: &Canvas<B>,
        centre: (i32, i32),
        radius: i32,
        stroke: u32,
    ) -> Drawn<B> {
        let radius = radius + radius / 4;
        self.paint(canvas, centre, radius, WHITE.filled())?;
        self.paint(canvas, centre, radius, self.colour().stroke_width(stroke))
    }

    fn paint<B: DrawingBackend>(
        self,
        canvas: &Canvas<B>,
        (x, y): (i32, i32),
        radius: i32,
        style: ShapeStyle,
    ) -> Drawn<B> {
        let corner = |radius: f64, revolutions: f64| {
            let (sin, cos) = (std::f64::consts::TAU * revolutions).sin_cos();
            (
                x + (radius * sin).round() as i32,
                y - (radius * cos).round() as i32,
            )
        };
        let outline: Vec<_> = match self.shape() {
            None => return Ok(()),
            Some(Shape::Circle) => return canvas.draw(&Circle::new((x, y), radius, style)),
            Some(Shape::Polygon { corners, turn }) => {
                // Polygons with few corners look smaller than a circle of the same radius.
                let radius = f64::from(radius) * if corners < 6 { 1.25 } else { 1.1 };
                (0..corners)
                    .map(|i| corner(radius, f64::from(i) / f64::from(corners) + turn))
                    .collect()
            }
            Some(Shape::Star { rays }) => (0..2 * rays)
                .map(|i| {
                    let reach = if i % 2 == 0 { 1.5 } else { 0.6 };
                    corner(
                        f64::from(radius) * reach,
                        f64::from(i) / f64::from(2 * rays),
                    )
                })
                .collect(),
            Some(Shape::Cross { turn }) => {
                // The twelve corners, three an arm: its two tips and the notch before the next arm.
                let (arm, half) = (1.4, 0.42);
                let (reach, aside) = (
                    f64::hypot(arm, half),
                    half.atan2(arm) / std::f64::consts::TAU,
                );
                (0..4)
                    .flat_map(|quarter| {
                        let middle = f64::from(quarter) / 4.0 + turn;
                        [
                            (reach, middle - aside),
                            (reach, middle + aside),
                            (half * SQRT_2, middle + 0.125),
                        ]
                    })
                    .map(|(reach, revolutions)| corner(f64::from(radius) * reach, revolutions))
                    .collect()
            }
        };
        if style.filled {
            canvas.draw(&Polygon::new(outline, style))
        } else {
            let closed: Vec<_> = outline
                .iter()
                .copied()
                .chain(outline.first().copied())
                .collect();
            canvas.draw(&PathElement::new(closed, style))
        }
    }
}

/// What drawing returns.
pub(super) type Drawn<B> = Result<(), DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>>;
