//! The SVG beside each table: grouped bars, one group per point of the sweep, one bar per system.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::report::{Report, number};

/// Tol's bright scheme: distinguishable for colour-blind readers and in print.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0x44, 0x77, 0xaa),
    RGBColor(0xee, 0x66, 0x77),
    RGBColor(0x22, 0x88, 0x33),
    RGBColor(0xcc, 0xbb, 0x44),
    RGBColor(0x66, 0xcc, 0xee),
    RGBColor(0xaa, 0x33, 0x77),
    RGBColor(0xbb, 0xbb, 0xbb),
    RGBColor(0x33, 0x33, 0x33),
];

/// A linear axis hides everything below a fiftieth of its top.
const LOG_SCALE_FROM_SPREAD: f64 = 50.0;

/// Draws `report` to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<()> {
    let area = SVGBackend::new(path, (960, 540)).into_drawing_area();
    area.fill(&WHITE).and_then(|()| bars(report, &area)).map_err(|e| anyhow!("plot: {e}"))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawResult<'a> =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>>;

/// Bar heights pass through this, so that one linear chart serves both kinds of axis.
#[derive(Clone, Copy)]
struct Scale {
    log: bool,
    low: f64,
    high: f64,
}

impl Scale {
    fn of(report: &Report) -> Self {
        let values = report.cells.iter().map(|cell| cell.median()).filter(|v| *v > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0), |(l, h), v| (v.min(l), v.max(h)));
        match high / low > LOG_SCALE_FROM_SPREAD {
            true => Scale { log: true, low: low.log10().floor(), high: high.log10().ceil() },
            false => Scale { log: false, low: 0.0, high: f64::max(high * 1.1, 1e-9) },
        }
    }

    fn place(self, value: f64) -> f64 {
        match self.log {
            true => value.max(1e-12).log10().max(self.low),
            false => value,
        }
    }

    fn label(self, place: f64) -> String {
        number(if self.log { 10f64.powf(place) } else { place })
    }
}

fn bars<'a>(report: &Report, area: &Area<'a>) -> DrawResult<'a> {
    let (points, systems) = (report.points(), report.systems());
    let scale = Scale::of(report);
    let mut chart = ChartBuilder::on(area)
        .caption(&report.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(0.0..points.len().max(1) as f64, scale.low..scale.high)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(&report.unit)
        .x_desc(&report.axis)
        .y_label_formatter(&|place| scale.label(*place))
        .draw()?;
    let width = 0.8 / systems.len().max(1) as f64;
    for (index, system) in systems.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let boxes = points.iter().enumerate().filter_map(|(group, point)| {
            let cell = report.cell(system, point)?;
            let left = group as f64 + 0.1 + width * index as f64;
            let corners = [(left, scale.low), (left + width * 0.92, scale.place(cell.median()))];
            Some(Rectangle::new(corners, colour.filled()))
        });
        chart
            .draw_series(boxes)?
            .label(*system)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 14, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    point_labels(&chart.plotting_area().strip_coord_spec(), &points)
}

fn point_labels<'a>(area: &Area<'a>, points: &[&str]) -> DrawResult<'a> {
    let (width, height) = area.dim_in_pixel();
    let centre = plotters::style::text_anchor::Pos::new(
        plotters::style::text_anchor::HPos::Center,
        plotters::style::text_anchor::VPos::Top,
    );
    for (index, point) in points.iter().enumerate() {
        let x = (index as f64 + 0.5) * f64::from(width) / points.len() as f64;
        let style = ("sans-serif", 14).into_text_style(area).pos(centre);
        area.draw(&Text::new(point.to_string(), (x as i32, height as i32 + 6), style))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Better;

    fn sample(values: [f64; 4]) -> Report {
        let mut report = Report::new("plot", "A plot", "tenants", "tx/s", Better::Higher);
        for (index, value) in values.into_iter().enumerate() {
            let system = ["kernel", "lane"][index % 2];
            report.add(system, ["1", "16"][index / 2], value, &[]);
        }
        report
    }

    #[test]
    fn a_plot_names_every_system_and_point() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("plot.svg");
        draw(&sample([35_000.0, 280_000.0, 36_000.0, 400_000.0]), &path).expect("drawn");
        let svg = std::fs::read_to_string(&path).expect("written");
        for word in ["kernel", "lane", "16", "tx/s"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }

    #[test]
    fn a_wide_spread_is_drawn_on_a_logarithmic_axis() {
        assert!(Scale::of(&sample([1.0, 2.0, 3.0, 1000.0])).log);
        assert!(!Scale::of(&sample([1.0, 2.0, 3.0, 4.0])).log);
    }
}
