//! Line charts in SVG, which every browser displays.

use crate::figure::short;

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

const WIDTH: f64 = 820.0;
const HEIGHT: f64 = 440.0;
const MARGIN_LEFT: f64 = 70.0;
const MARGIN_RIGHT: f64 = 210.0;
const MARGIN_TOP: f64 = 40.0;
const MARGIN_BOTTOM: f64 = 55.0;
const COLOURS: [&str; 6] = [
    "#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377",
];

impl LineChart {
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let x = self.x.scale(
            points().map(|point| point.0),
            MARGIN_LEFT,
            WIDTH - MARGIN_RIGHT,
        );
        let y = self.y.scale(
            points().map(|point| point.1),
            HEIGHT - MARGIN_BOTTOM,
            MARGIN_TOP,
        );
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{MARGIN_LEFT}\" y=\"22\" font-size=\"15\">{}</text>\n",
            escaped(self.title)
        );
        let (right, bottom) = (WIDTH - MARGIN_RIGHT, HEIGHT - MARGIN_BOTTOM);
        for (value, text) in x.ticks(&self.x) {
            let at = x.place(value);
            svg.push_str(&format!(
                "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{MARGIN_TOP}\" y2=\"{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>\n",
                bottom + 18.0
            ));
        }
        for (value, text) in y.ticks(&self.y) {
            let at = y.place(value);
            svg.push_str(&format!(
                "<line x1=\"{MARGIN_LEFT}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>\n",
                MARGIN_LEFT - 6.0,
                at + 4.0
            ));
        }
        svg.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
            (MARGIN_LEFT + right) / 2.0,
            HEIGHT - 14.0,
            escaped(self.x.label),
            (MARGIN_TOP + bottom) / 2.0,
            escaped(self.y.label)
        ));
        for (line, (at, colour)) in self.lines.iter().zip(COLOURS.iter().cycle().enumerate()) {
            let path: Vec<String> = line
                .points
                .iter()
                .map(|point| format!("{:.1},{:.1}", x.place(point.0), y.place(point.1)))
                .collect();
            let legend = MARGIN_TOP + 16.0 + at as f64 * 20.0;
            svg.push_str(&format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <rect x=\"{:.1}\" y=\"{:.1}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{legend:.1}\">{}</text>\n",
                path.join(" "),
                right + 14.0,
                legend - 6.0,
                right + 34.0,
                escaped(&line.name)
            ));
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// The mapping from values to chart positions.
struct AxisScale {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl ChartAxis {
    pub(crate) fn linear(label: &'static str) -> Self {
        Self {
            label,
            logarithmic: false,
            marks: Vec::new(),
        }
    }

    fn scale(&self, values: impl Iterator<Item = f64>, from: f64, to: f64) -> AxisScale {
        let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
        let most = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let least = values.iter().copied().fold(most, f64::min);
        if self.logarithmic {
            let least = 10_f64.powf(least.max(1e-6).log10().floor());
            return AxisScale {
                least,
                most: 10_f64.powf(most.log10().ceil()),
                from,
                to,
                logarithmic: true,
            };
        }
        let least = if self.marks.is_empty() { 0.0 } else { least };
        AxisScale {
            least,
            most: most * 1.05,
            from,
            to,
            logarithmic: false,
        }
    }
}

impl AxisScale {
    fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(self.least).ln() - self.least.ln()) / (self.most.ln() - self.least.ln())
        } else {
            (value - self.least) / (self.most - self.least)
        };
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    fn ticks(&self, axis: &ChartAxis) -> Vec<(f64, String)> {
        if !axis.marks.is_empty() {
            return axis.marks.clone();
        }
        let number = |value: f64| (value, short(value));
        if self.logarithmic {
            let decades = (self.least.log10().round() as i32)..=(self.most.log10().round() as i32);
            return decades.map(|decade| number(10_f64.powi(decade))).collect();
        }
        let rough = (self.most - self.least) / 6.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..8)
            .map(|at| number(step * f64::from(at)))
            .filter(|(value, _)| *value <= self.most)
            .collect()
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
