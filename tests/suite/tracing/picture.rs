//! A picture of a trace, from the spans that a collector has received: one row for each span, in
//! the order of their starts below their parents.

use std::fmt::Write;
use std::path::Path;

use postern_common::config::Env;

use super::{Span, Spans};

const WIDTH: u64 = 900;
const NAMES_WIDTH: u64 = 380;
const TIMES_WIDTH: u64 = 80;
const ROW_HEIGHT: u64 = 26;
const HEAD_HEIGHT: u64 = 34;
const INDENT: u64 = 16;
/// Characters of a name that fit beside the times, at the deepest level.
const MAX_NAME_CHARACTERS: usize = 34;

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#16202c}.muted{fill:#5b6877}\
    .back{fill:#ffffff}.line{stroke:#e1e5ea}.proxy{fill:#0b6e75}.auth{fill:#2458b8}.notify{fill:#9a6200}\
    @media(prefers-color-scheme:dark){text{fill:#e6ebf1}.muted{fill:#93a1b1}.back{fill:#0f1318}\
    .line{stroke:#2a323d}.proxy{fill:#4fc3c9}.auth{fill:#7aa7ff}.notify{fill:#f0b429}}";

/// A row: the depth in the tree and the span.
type Row<'a> = (u64, &'a Span);

/// Asserts that the picture in the documentation has the spans of this trace in this order, except
/// those of Redis: a script that Redis does not know yet needs a second call. Writes the picture
/// instead if `POSTERN_TEST_WRITE_TRACE` is set.
pub(super) fn assert_documented(spans: &Spans, trace: &str) {
    let rows = rows(spans, trace);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/images/trace.svg");
    if Env::of_process().get("POSTERN_TEST_WRITE_TRACE").is_some() {
        std::fs::write(&path, draw(&rows)).expect("the picture can be written");
        return;
    }
    let shown = std::fs::read_to_string(&path).expect("docs/images/trace.svg");
    let mut at = 0;
    let redis = "Str(redis)".to_owned();
    let is_compared = |(_, span): &Row<'_>| span.attributes.get("db.system.name") != Some(&redis);
    for (depth, span) in rows.into_iter().filter(is_compared) {
        let label = label(depth, span);
        let found = shown[at..].find(&label);
        let found = found.unwrap_or_else(|| {
            panic!("docs/images/trace.svg has no {label} there: write it with POSTERN_TEST_WRITE_TRACE=1")
        });
        at += found + label.len();
    }
}

/// Returns the spans of a trace, each below its parent.
fn rows<'a>(spans: &'a Spans, trace: &str) -> Vec<Row<'a>> {
    let mut of_trace: Vec<&Span> = spans.0.iter().filter(|span| span.trace == trace).collect();
    of_trace.sort_by_key(|span| span.start);
    let mut rows = Vec::new();
    add_children(&of_trace, "", 0, &mut rows);
    assert_eq!(rows.len(), of_trace.len(), "all spans have their parents");
    rows
}

fn add_children<'a>(spans: &[&'a Span], parent: &str, depth: u64, rows: &mut Vec<Row<'a>>) {
    for span in spans.iter().copied().filter(|span| span.parent == parent) {
        rows.push((depth, span));
        add_children(spans, &span.id, depth + 1, rows);
    }
}

fn label(depth: u64, span: &Span) -> String {
    let x = 12 + depth * INDENT;
    let service = span.service.trim_start_matches("postern-");
    let mut name: String = span.name.chars().take(MAX_NAME_CHARACTERS).collect();
    if name != span.name {
        name.push('…');
    }
    let name = name.replace('&', "&amp;").replace('<', "&lt;");
    let service_text = format!("<tspan class=\"muted\">{service}</tspan>");
    format!("x=\"{x}\">{service_text} {name}</text>")
}

fn draw(rows: &[Row<'_>]) -> String {
    let start = rows.iter().map(|(_, span)| span.start).min();
    let end = rows.iter().map(|(_, span)| span.end).max();
    let (start, end) = (start.expect("a span"), end.expect("a span"));
    let total = (end - start).max(1);
    let bars_width = WIDTH - NAMES_WIDTH - TIMES_WIDTH;
    let height = HEAD_HEIGHT + ROW_HEIGHT * rows.len() as u64 + 8;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"The spans of a trace\"><style>{STYLE}</style>\
         <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"muted\" x=\"12\" y=\"22\">span</text>\
         <text class=\"muted\" x=\"{NAMES_WIDTH}\" y=\"22\">{} in all</text>\n",
        milliseconds(total)
    );
    for (at, (depth, span)) in rows.iter().enumerate() {
        let top = HEAD_HEIGHT + ROW_HEIGHT * at as u64;
        let x = NAMES_WIDTH + (span.start - start) * bars_width / total;
        let width = ((span.end - span.start) * bars_width / total).max(2);
        let class = span.service.trim_start_matches("postern-");
        let (text_y, bar_y, after) = (top + 17, top + 6, x + width + 6);
        let _ = writeln!(
            svg,
            "<path class=\"line\" d=\"M0 {top}H{WIDTH}\"/><text y=\"{text_y}\" {}\
             <rect class=\"{class}\" x=\"{x}\" y=\"{bar_y}\" width=\"{width}\" height=\"14\" rx=\"2\"/>\
             <text class=\"muted\" x=\"{after}\" y=\"{text_y}\">{}</text>",
            label(*depth, span),
            milliseconds(span.end - span.start)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns nanoseconds as `1.3 ms`.
fn milliseconds(nanoseconds: u64) -> String {
    let tenths = nanoseconds / 100_000;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}
