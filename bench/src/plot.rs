//! Line charts in SVG, which every browser displays.

use std::io;
use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use crate::figure::short;
use crate::report::spread;

/// A line chart.
pub(crate) struct LineChart {
    /// Suffix of the file name.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) x: ChartAxis,
    pub(crate) y: ChartAxis,
    pub(crate) lines: Vec<ChartLine>,
}

/// An axis of a chart.
pub(crate) struct ChartAxis {
    pub(crate) label: &'static str,
    pub(crate) logarithmic: bool,
    /// Labelled positions; empty for a numeric axis.
    pub(crate) marks: Vec<(f64, String)>,
}

/// The line of one peer.
pub(crate) struct ChartLine {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (820, 440);
/// Position of the legend, to the right of the lines, and distance of its rows.
const LEGEND_LEFT: i32 = 660;
const LEGEND_TOP: i32 = 50;
const LEGEND_ROW: usize = 20;

const FONT: (&str, u32) = ("sans-serif", 13);
const TITLE_FONT: (&str, u32) = ("sans-serif", 16);
const GRID: RGBColor = RGBColor(221, 221, 221);

/// Colours that people with colour vision deficiencies can distinguish.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x44, 0x77, 0xaa),
    RGBColor(0xee, 0x66, 0x77),
    RGBColor(0x22, 0x88, 0x33),
    RGBColor(0xcc, 0xbb, 0x44),
    RGBColor(0x66, 0xcc, 0xee),
    RGBColor(0xaa, 0x33, 0x77),
];

impl LineChart {
    /// Returns the chart as SVG.
    ///
    /// # Errors
    /// The chart cannot be drawn.
    pub(crate) fn svg(&self) -> io::Result<String> {
        let mut svg = String::new();
        self.draw(SVGBackend::with_string(&mut svg, SIZE))
            .map_err(|error| io::Error::other(format!("{}: {error}", self.name)))?;
        Ok(svg)
    }

    fn draw<B: DrawingBackend>(
        &self,
        backend: B,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = self.x.scale(points().map(|point| point.0));
        let y = self.y.scale(points().map(|point| point.1));
        let (plot, legend) = area.split_horizontally(LEGEND_LEFT);
        let mut chart = ChartBuilder::on(&plot)
            .caption(self.title, TITLE_FONT)
            .margin(12)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(60)
            .build_cartesian_2d(x, y)?;
        chart
            .configure_mesh()
            .bold_line_style(GRID)
            .label_style(FONT)
            .x_desc(self.x.label)
            .y_desc(self.y.label)
            .draw()?;
        let rows = (LEGEND_TOP..).step_by(LEGEND_ROW);
        for ((line, colour), row) in self.lines.iter().zip(COLOURS.iter().cycle()).zip(rows) {
            let style = colour.stroke_width(2);
            let is_measured = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
            let points = line.points.iter().copied().filter(is_measured);
            chart.draw_series(LineSeries::new(points, style))?;
            legend.draw(&PathElement::new([(0, row), (16, row)], style))?;
            legend.draw(&Text::new(line.name.as_str(), (24, row - 6), FONT))?;
        }
        area.present()
    }
}

/// The mapping from values to pixels, and the labels.
struct AxisScale {
    range: Range<f64>,
    logarithmic: bool,
    marks: Vec<(f64, String)>,
}

impl ChartAxis {
    pub(crate) fn linear(label: &'static str) -> Self {
        Self {
            label,
            logarithmic: false,
            marks: Vec::new(),
        }
    }

    /// Returns a scale for the values: whole decades of a logarithmic axis, from the first to the
    /// last value of one with marks, and from zero otherwise.
    fn scale(&self, values: impl Iterator<Item = f64>) -> AxisScale {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let (least, _, most) = spread(&values);
        let range = if self.logarithmic {
            let decade = |value: f64, round: fn(f64) -> f64| 10_f64.powf(round(value.log10()));
            let least = decade(least.max(1e-6), f64::floor);
            least..decade(most.max(least), f64::ceil).max(least * 10.0)
        } else if self.marks.is_empty() {
            0.0..(most * 1.05).max(f64::MIN_POSITIVE)
        } else {
            least..most
        };
        AxisScale {
            range,
            logarithmic: self.logarithmic,
            marks: self.marks.clone(),
        }
    }
}

impl Ranged for AxisScale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let position = |value: f64| {
            if self.logarithmic {
                value.log10()
            } else {
                value
            }
        };
        let (least, most) = (position(self.range.start), position(self.range.end));
        let share = (position(*value) - least) / (most - least);
        from + (f64::from(to - from) * share.clamp(0.0, 1.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        if !self.marks.is_empty() {
            return self.marks.iter().map(|(value, _)| *value).collect();
        }
        if self.logarithmic {
            let decades = std::iter::successors(Some(self.range.start), |value| Some(value * 10.0));
            let most = self.range.end * 1.01;
            return decades.take_while(|value| *value < most).collect();
        }
        RangedCoordf64::from(self.range.clone()).key_points(hint.bold_points())
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for AxisScale {
    fn format_ext(&self, value: &f64) -> String {
        let mark = self.marks.iter().find(|(at, _)| (at - value).abs() < 1e-9);
        mark.map_or_else(|| short(*value), |(_, text)| text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool) -> String {
        let chart = LineChart {
            name: "latency",
            title: "Latency < 1 s",
            x: ChartAxis {
                label: "percentile",
                logarithmic: false,
                marks: vec![(0.3, "50 %".to_owned()), (3.0, "99.9 %".to_owned())],
            },
            y: ChartAxis {
                label: "milliseconds",
                logarithmic,
                marks: Vec::new(),
            },
            lines: vec![ChartLine {
                name: "nginx".to_owned(),
                points: vec![(0.3, 0.2), (3.0, 20.0)],
            }],
        };
        chart.svg().unwrap()
    }

    #[test]
    fn chart_has_title_marks_labels_and_legend() {
        let svg = chart(true);
        for text in [
            "Latency &lt; 1 s",
            "50 %",
            "99.9 %",
            "milliseconds",
            "nginx",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(
            svg.starts_with("<svg") && svg.contains("<polyline"),
            "{svg}"
        );
    }

    #[test]
    fn points_without_a_value_are_omitted() {
        let line = |points: Vec<(f64, f64)>| {
            let axis = || ChartAxis::linear("");
            let chart = LineChart {
                name: "cost",
                title: "",
                x: axis(),
                y: axis(),
                lines: vec![ChartLine {
                    name: String::new(),
                    points,
                }],
            };
            chart.svg().unwrap()
        };
        let measured = vec![(1.0, 3.0), (3.0, 5.0)];
        let with_gap = vec![(1.0, 3.0), (2.0, f64::NAN), (3.0, 5.0)];
        assert_eq!(line(with_gap), line(measured));
    }

    #[test]
    fn logarithmic_axis_has_whole_decades() {
        let labels = |svg: &str| -> Vec<String> {
            svg.lines()
                .map(str::trim)
                .filter(|line| line.parse::<f64>().is_ok())
                .map(str::to_owned)
                .collect()
        };
        assert_eq!(labels(&chart(true)), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(&chart(false)).first().map(String::as_str), Some("0"));
    }
}
