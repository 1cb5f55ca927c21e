//! The static part of every page, the assets, and the header fields that restrict them.
//!
//! The shell contains no data: anybody may load it. Assets are embedded in the program and named by
//! the hash of their contents. Depends on `widgets`.

use std::sync::LazyLock;

use axum::response::{IntoResponse, Response};
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use maud::{DOCTYPE, Markup, html};
use postern_core::Code;
use sha2::{Digest, Sha256};

/// Nothing but the console's own scripts, styles and connections. Forms are handled by the script.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self' data:; frame-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The icon of the browser's tab: a gate.
const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' rx='3' fill='%230b6e75'/%3E%3Cpath d='M4 13V7a4 4 0 0 1 8 0v6M8 6v7' fill='none' stroke='white' stroke-width='1.8'/%3E%3C/svg%3E";

/// An embedded file.
struct Asset {
    name: &'static str,
    media_type: &'static str,
    text: &'static str,
    /// Path with the hash of the contents.
    path: String,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let (script, style) = ("text/javascript; charset=utf-8", "text/css; charset=utf-8");
    vec![
        Asset::new("console.js", script, include_str!("../assets/console.js")),
        Asset::new("pages.js", script, include_str!("../assets/pages.js")),
        Asset::new("requests.js", script, include_str!("../assets/requests.js")),
        Asset::new(
            "configuration.js",
            script,
            include_str!("../assets/configuration.js"),
        ),
        Asset::new("style.css", style, include_str!("../assets/style.css")),
    ]
});

/// The sections of the navigation: heading, and pages with path and title.
pub(crate) const NAVIGATION: &[(&str, &[(&str, &str)])] = &[
    ("", &[("/", "Overview"), ("/search", "Search")]),
    (
        "Gateway",
        &[
            ("/requests", "Requests"),
            ("/routes", "Routes"),
            ("/upstreams", "Upstreams"),
            ("/tokens", "Keys and tokens"),
            ("/configuration", "Configuration"),
            ("/history", "History"),
        ],
    ),
    (
        "Notifications",
        &[
            ("/notifications", "Notifications"),
            ("/dead-letters", "Dead letters"),
            ("/providers", "Providers"),
            ("/templates", "Templates"),
            ("/suppression", "Suppression"),
        ],
    ),
    (
        "Sign-in",
        &[
            ("/users", "Users"),
            ("/sign-ins", "Sign-ins"),
            ("/throttled", "Throttled"),
        ],
    ),
];

// === impl Asset ===

impl Asset {
    fn new(name: &'static str, media_type: &'static str, text: &'static str) -> Self {
        let hash = hex::encode(&Sha256::digest(text)[..8]);
        Self {
            name,
            media_type,
            text,
            path: format!("/assets/{hash}/{name}"),
        }
    }
}

fn asset_path(name: &str) -> &'static str {
    let found = ASSETS.iter().find(|asset| asset.name == name);
    found.map_or("", |asset| asset.path.as_str())
}

/// Returns an asset, which browsers may keep, or 404.
pub(crate) fn asset(path: &str) -> Response {
    let found = ASSETS.iter().find(|asset| asset.path == path);
    let Some(asset) = found else {
        return Code::NotFound.into_response();
    };
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.media_type)),
        (
            CACHE_CONTROL,
            HeaderValue::from_static("public, max-age=31536000, immutable"),
        ),
    ];
    (headers, asset.text).into_response()
}

/// Returns the shell: navigation, search and an empty main part. `command` prints a one-time link.
pub(crate) fn page(command: Option<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Postern" }
                link rel="icon" href=(ICON);
                link rel="stylesheet" href=(asset_path("style.css"));
                script type="module" src=(asset_path("console.js")) data-pages={ (asset_path("pages.js")) " " (asset_path("configuration.js")) }
                    data-requests=(asset_path("requests.js")) {}
            }
            body {
                a.skip href="#main" { "Skip to contents" }
                nav.side #sections aria-label="Sections" hidden {
                    div.brand { "Postern" small { "console" } }
                    @for (heading, pages) in NAVIGATION {
                        @if !heading.is_empty() { h2 { (heading) } }
                        @for (path, title) in *pages { a href=(path) { (title) } }
                    }
                }
                div.page {
                    header.top hidden {
                        button type="button" #menu aria-controls="sections" aria-expanded="false" { "Menu" }
                        form #search role="search" action="/search" {
                            input type="search" name="q" autocomplete="off" spellcheck="false"
                                placeholder="E-mail, user, request or notification id   ( / )" aria-label="Search";
                        }
                        span.who #as-of {}
                        span.who #who {}
                        button type="button" #sign-out { "Sign out" }
                    }
                    div.stale #stale role="alert" hidden {}
                    main #main tabindex="-1" {
                        noscript { p { "The console needs JavaScript." } }
                    }
                    div.toast #result role="status" aria-live="polite" {}
                }
                dialog #confirm aria-labelledby="confirm-text" {
                    p #confirm-text {}
                    div.buttons {
                        button type="button" value="no" { "Cancel" }
                        button.primary type="button" value="yes" { "Confirm" }
                    }
                }
                template #sign-in-page { (sign_in(command)) }
            }
        }
    }
}

fn sign_in(command: Option<&str>) -> Markup {
    html! {
        div.sign-in {
            h1 tabindex="-1" { "Sign in to Postern" }
            p.muted #sign-in-reason {}
            @if let Some(command) = command { div.panel {
                p { "To sign in as operator, print a link on the machine that runs Postern, and open it:" }
                pre.code tabindex="0" { (command) }
            } }
            form.panel.stack #sign-in {
                label { "E-mail address" input type="email" name="email" autocomplete="username" required; }
                label { "Password" input type="password" name="password" autocomplete="current-password" required; }
                button.primary type="submit" { "Sign in" }
            }
            form.panel.stack #token-sign-in {
                label { "Access token" input type="password" name="token" autocomplete="off" required aria-describedby="token-hint"; }
                p.muted #token-hint { "Of a service, or of a person whose sign-in has a second step. It stays in this tab." }
                button type="submit" { "Use this token" }
            }
        }
    }
}

/// Adds the header fields that every response has.
pub(crate) fn protect(mut response: Response) -> Response {
    let fields = [
        ("content-security-policy", CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
        ("x-frame-options", "DENY"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fields {
        // A frame has its own policy.
        let field = headers.entry(HeaderName::from_static(name));
        field.or_insert(HeaderValue::from_static(value));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use postern_core::hidden_characters::is_hidden;

    /// Returns the ranges of the character class `HIDDEN` of `console.js`, without `\p{Cc}`.
    fn hidden_ranges() -> Vec<RangeInclusive<u32>> {
        let script = include_str!("../assets/console.js");
        let (_, class) = script
            .split_once(r"(?![\n\r\t])[\p{Cc}")
            .expect("the class");
        let (class, _) = class.split_once(']').expect("its end");
        let number = |text: &str| {
            let digits = text.trim_matches(['{', '}']);
            u32::from_str_radix(digits, 16).expect("a number")
        };
        let members = class.replace(r"-\u", "-").replacen(r"\u", "", 1);
        let members = members
            .split(r"\u")
            .map(|member| match member.split_once('-') {
                Some((first, last)) => number(first)..=number(last),
                None => number(member)..=number(member),
            });
        members.collect()
    }

    #[test]
    fn script_and_server_hide_the_same_characters() {
        let ranges = hidden_ranges();
        assert!(ranges.len() > 10, "{ranges:x?}");
        for character in '\0'..=char::MAX {
            let is_listed = ranges.iter().any(|range| range.contains(&character.into()));
            let is_break = ['\n', '\r', '\t'].contains(&character);
            let of_script = !is_break && (character.is_control() || is_listed);
            assert_eq!(
                of_script,
                is_hidden(character),
                "{}",
                character.escape_unicode()
            );
        }
    }
}
