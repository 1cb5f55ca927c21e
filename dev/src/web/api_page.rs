//! The page for trying requests: Swagger UI over `conf/openapi.json`.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::header::{CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use maud::html;
use postern_core::problem::Code;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED;

use crate::web::page::{POLICY, Page, Section, script};

pub(crate) const PATH: &str = "/api";
/// The gateway that the document names.
const GATEWAY: &str = "http://127.0.0.1:8500";
/// The head of a gzip member without optional fields (RFC 1952 section 2.3).
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// Builds the router of the page, its viewer and the document. Requests go to `gateway`.
pub(crate) fn router(gateway: &str) -> Router {
    let document = include_str!("../../../conf/openapi.json").replace(GATEWAY, gateway);
    let document = move || async move { ([(CONTENT_TYPE, "application/json")], document) };
    let connect = format!("connect-src 'self' {gateway}");
    let policy = HeaderValue::try_from(POLICY.replace("connect-src 'self'", &connect)).ok();
    Router::new()
        .route(PATH, get(move || async move { page(policy) }))
        .route("/openapi.json", get(document))
        .route(
            "/assets/api_page.js",
            get(|| async { script(include_str!("api_page.js")) }),
        )
        .merge(viewer("swagger-ui-bundle.js", "text/javascript"))
        .merge(viewer("swagger-ui.css", "text/css"))
}

fn page(policy: Option<HeaderValue>) -> Response {
    let page = Page {
        title: "API",
        section: Some(Section::Api),
        script: Some("/assets/api_page.js"),
        content: html! { div #api {} },
    };
    let mut response = page.respond(StatusCode::OK);
    if let Some(policy) = policy {
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn viewer(name: &str, media_type: &'static str) -> Router {
    let packed = gzip_of(SWAGGER_UI_VENDORED, &format!("/dist/{name}"));
    let fields = [(CONTENT_TYPE, media_type), (CONTENT_ENCODING, "gzip")];
    let file = move || async move { Ok::<_, Code>((fields, packed.ok_or(Code::NotFound)?)) };
    Router::new().route(&format!("/assets/{name}"), get(file))
}

/// Returns the file of a ZIP archive whose path ends with `path` as a gzip member: both contain the
/// same DEFLATE data, length and CRC (APPNOTE.TXT section 4.3.7, RFC 1952).
fn gzip_of(archive: &[u8], path: &str) -> Option<Vec<u8>> {
    let mut rest = archive;
    loop {
        let head = rest
            .get(..30)
            .filter(|head| head.starts_with(b"PK\x03\x04"))?;
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .rfold(0, |sum, byte| sum << 8 | usize::from(*byte))
        };
        let (data_len, name_len) = (number(&head[18..22]), number(&head[26..28]));
        let data_at = 30 + name_len + number(&head[28..30]);
        let data = rest.get(data_at..data_at + data_len)?;
        if rest[30..30 + name_len].ends_with(path.as_bytes()) {
            let (crc, length) = (&head[14..18], &head[22..26]);
            return Some([&GZIP_HEAD, data, crc, length].concat());
        }
        rest = &rest[data_at + data_len..];
    }
}
