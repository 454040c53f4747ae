//! Curves over time, and bars, as inline SVG.

use kumi_topo::svg::escaped;
use std::fmt::Write;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 14.0;
const RIGHT: f64 = 120.0;

/// Shortest time axis, in seconds.
const END_MIN_S: f64 = 0.1;

/// Largest number of tick intervals on the time axis.
const TICKS_MAX: f64 = 10.0;

/// Returns the time between two ticks, in seconds: 1, 2 or 5 times a power of ten, at least 0.1.
fn tick_s(end_s: f64) -> f64 {
    let mut decade_s = 0.1;
    loop {
        for step in [1.0, 2.0, 5.0] {
            if end_s / (decade_s * step) <= TICKS_MAX {
                return decade_s * step;
            }
        }
        decade_s *= 10.0;
    }
}

/// A chart of rates in bit/s over seconds.
#[derive(Debug, Default)]
pub struct Chart {
    curves: Vec<Curve>,
    rulers: Vec<(f64, String)>,
    marks: Vec<(f64, String)>,
}

#[derive(Debug)]
struct Curve {
    name: String,
    class: &'static str,
    points: Vec<(f64, f64)>,
}

impl Chart {
    /// Adds a curve. `class` is its CSS class in the page.
    pub fn curve(mut self, name: &str, class: &'static str, points: Vec<(f64, f64)>) -> Self {
        self.curves.push(Curve {
            name: name.into(),
            class,
            points,
        });
        self
    }

    /// Adds a horizontal line, for a ceiling.
    pub fn ruler(mut self, bps: f64, name: &str) -> Self {
        self.rulers.push((bps, name.into()));
        self
    }

    /// Adds vertical lines, for events: time in seconds and name.
    pub fn marks(mut self, marks: &[(f64, &str)]) -> Self {
        self.marks.extend(
            marks
                .iter()
                .map(|(time_s, name)| (*time_s, (*name).to_string())),
        );
        self
    }

    /// Returns the SVG element.
    pub fn svg(&self) -> String {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let end_s = points().map(|point| point.0).fold(END_MIN_S, f64::max);
        let rulers = self.rulers.iter().map(|ruler| ruler.0);
        let top_bps = points()
            .map(|point| point.1)
            .chain(rulers)
            .fold(1e6, f64::max)
            * 1.08;
        let x = |time_s: f64| LEFT + time_s.clamp(0.0, end_s) / end_s * (WIDTH - LEFT - RIGHT);
        let y = |bps: f64| HEIGHT - BOTTOM - bps / top_bps * (HEIGHT - TOP - BOTTOM);
        let (right, floor) = (x(end_s), y(0.0));

        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n");
        let tick_s = tick_s(end_s);
        for tick in 0..=(end_s / tick_s) as u32 {
            let time_s = f64::from(tick) * tick_s;
            let digits = usize::from(tick_s < 1.0);
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"middle\">{time_s:.digits$} s</text>",
                x(time_s),
                HEIGHT - 12.0
            );
        }
        for step in 0..=4 {
            let bps = top_bps / 4.0 * f64::from(step);
            let line_y = y(bps);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{line_y:.1}\" y2=\"{line_y:.1}\" class=\"grid\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{:.0}</text>",
                LEFT - 6.0,
                line_y + 4.0,
                bps / 1e6
            );
        }
        for (bps, name) in &self.rulers {
            let line_y = y(*bps);
            let _ = writeln!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right:.1}\" y1=\"{line_y:.1}\" y2=\"{line_y:.1}\" class=\"ruler\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\">{}</text>",
                right + 6.0,
                line_y + 4.0,
                escaped(name)
            );
        }
        for (time_s, name) in &self.marks {
            let line_x = x(*time_s);
            let _ = writeln!(
                svg,
                "<line x1=\"{line_x:.1}\" x2=\"{line_x:.1}\" y1=\"{TOP}\" y2=\"{floor:.1}\" class=\"mark\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"mark-name\">{}</text>",
                line_x + 4.0,
                TOP + 10.0,
                escaped(name)
            );
        }
        for (index, curve) in self.curves.iter().enumerate() {
            let path: Vec<String> = curve
                .points
                .iter()
                .filter(|point| point.0 >= 0.0)
                .map(|(time_s, bps)| format!("{:.1},{:.1}", x(*time_s), y(*bps)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" class=\"curve {}\"/>",
                path.join(" "),
                curve.class
            );
            let name_y = HEIGHT - BOTTOM - 8.0 - 16.0 * index as f64;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{name_y:.1}\" class=\"name {}\">{}</text>",
                right + 6.0,
                curve.class,
                escaped(&curve.name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// Height of a bar with its gap, in units of the SVG.
const BAR_PITCH: f64 = 28.0;

/// Returns a horizontal bar for each name and value. The longest bar fills the width.
pub fn bars(values: &[(&str, f64)]) -> String {
    let top = values
        .iter()
        .map(|(_, value)| *value)
        .filter(|value| value.is_finite())
        .fold(f64::MIN_POSITIVE, f64::max);
    let left = 2.0 * LEFT;
    let height = BAR_PITCH * values.len() as f64;
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n");
    for (index, (name, value)) in values.iter().enumerate() {
        let y = BAR_PITCH * index as f64;
        let share = if value.is_finite() { value / top } else { 0.0 };
        let width = share * (WIDTH - left - RIGHT);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\" text-anchor=\"end\">{}</text>\
             <rect x=\"{left}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{:.1}\" class=\"bar\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"tick\">{value:.1}</text>",
            left - 6.0,
            y + BAR_PITCH * 0.6,
            escaped(name),
            y + BAR_PITCH * 0.15,
            BAR_PITCH * 0.7,
            left + width + 6.0,
            y + BAR_PITCH * 0.6,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg__curve_ruler_and_marks__are_drawn_and_escaped() {
        let svg = Chart::default()
            .curve("goodput", "total", vec![(0.1, 1e9), (0.2, 2e9)])
            .ruler(1.9e9, "two links")
            .marks(&[(0.15, "cut <here>")])
            .svg();
        assert!(svg.contains("class=\"curve total\"") && svg.contains("two links"));
        assert!(svg.contains("cut &lt;here&gt;") && !svg.contains("NaN"));
    }

    #[test]
    fn bars__zero_and_unmeasured__have_no_width() {
        let svg = bars(&[("a", 0.0), ("b", f64::NAN), ("c", 2.0)]);
        assert_eq!(svg.matches("width=\"0.0\"").count(), 2);
        assert!(svg.contains("width=\"620.0\""));
    }

    #[test]
    fn ticks__short_and_long_runs__are_few_and_round() {
        let ticks_s = [0.1, 0.45, 1.5, 14.0, 100.0].map(tick_s);
        assert_eq!(ticks_s, [0.1, 0.1, 0.2, 2.0, 10.0]);
    }

    #[test]
    fn svg__nothing_measured__contains_no_nan() {
        assert!(!Chart::default().svg().contains("NaN"));
    }
}
