//! `[[route]]`: routes to upstreams.

use std::sync::Arc;

use ahash::AHashMap;
use http::HeaderName;
use postern_core::decode::{Field, Object, Value};
use postern_http::message::headers;
use serde_json::json;

use crate::config::upstream::find_upstream;
use crate::config::{HostPattern, MatchCondition, MethodSet, PathPattern, RoutePattern};
use crate::config::{
    MirrorConfig, RouteAnswer, RoutePolicy, RouteSettings, UpstreamConfig, Variable, policy,
};

/// `[[route]]`: a match, an upstream and a policy.
#[derive(Clone, Debug)]
pub struct Route {
    /// The name in tests, logs and metrics; default the methods and the path.
    pub name: String,
    /// The match conditions.
    pub pattern: RoutePattern,
    /// The upstreams, as positions in [`super::Config::upstreams`] with weights; empty if the
    /// gateway answers itself.
    pub targets: Vec<RouteTarget>,
    /// The answer of the gateway itself; `None` if requests are forwarded.
    pub answer: Option<Arc<RouteAnswer>>,
    /// The authorization policy.
    pub policy: RoutePolicy,
    /// Replacement of the beginning of the path; default none.
    pub rewrite: Option<PathRewrite>,
    /// Mirroring of requests; default none.
    pub mirror: Option<Box<MirrorConfig>>,
    /// The settings that `[defaults]` can set for all routes.
    pub settings: RouteSettings,
}

/// An upstream of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteTarget {
    /// Position in [`super::Config::upstreams`].
    pub upstream: usize,
    /// Weight relative to the other upstreams of the route.
    pub weight: u32,
}

/// A path prefix rewrite: `{ strip = "/v1" }` or `{ strip = "/v1", add = "/api" }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRewrite {
    /// The prefix to remove; every path of the route begins with it.
    pub strip: String,
    /// The prefix to insert.
    pub add: String,
}

/// Reads all routes. A route with an unknown upstream or a duplicate name, or one that an earlier
/// route shadows, is reported at its line.
pub(super) fn read_all(
    root: &Object<'_>,
    upstreams: &[UpstreamConfig],
    defaults: &RouteSettings,
) -> Vec<Route> {
    let mut earlier: Vec<Route> = Vec::new();
    let mut offsets: Vec<usize> = Vec::new();
    let mut names: AHashMap<String, usize> = AHashMap::new();
    let mut shapes: AHashMap<String, Vec<usize>> = AHashMap::new();
    let _count = root.list("route", |field| {
        let route = Route::read(field, upstreams, defaults)?;
        if let Some(first) = names.insert(route.name.clone(), field.node().offset) {
            let detail = format!("a route is already called {}", route.name);
            field.conflict::<()>("duplicate_name", detail, first);
        }
        let same = shapes.entry(route.pattern.shape()).or_default();
        if let Some(by) = same
            .iter()
            .find(|at| earlier[**at].pattern.covers(&route.pattern))
        {
            let name = &earlier[*by].name;
            let detail = format!("can never be taken: {name} takes all its requests");
            field.conflict::<()>("unreachable_route", detail, offsets[*by]);
        }
        same.push(earlier.len());
        earlier.push(route);
        offsets.push(field.node().offset);
        Some(())
    });
    earlier
}

impl Route {
    /// Returns the positions of the segments of a path by which the policy decides, or the upstream,
    /// which gets them in header fields.
    pub(crate) fn deciding_segments(&self) -> impl Iterator<Item = usize> {
        let changes = self.settings.request_headers.iter();
        let fields = changes.flat_map(|changes| changes.set.iter().chain(&changes.add));
        let variables = fields.flat_map(|(_, template)| template.variables());
        let params = variables.filter_map(|variable| {
            let Variable::PathParam(at) = variable else {
                return None;
            };
            Some(at)
        });
        let owner = self.policy.owner_rule().map(|owner| owner.segment);
        owner.into_iter().chain(params)
    }

    fn read(
        field: Field<'_>,
        upstreams: &[UpstreamConfig],
        defaults: &RouteSettings,
    ) -> Option<Self> {
        field.object(|route| {
            let pattern = read_pattern(route);
            let name = route.optional("name", |field| field.text(1..=100));
            let targets = route.optional("upstream", |field| read_targets(field, upstreams));
            let answer = RouteAnswer::read(route, pattern.as_ref());
            check_destination(route);
            let policy = route.required("policy", |field| {
                policy::read(field, pattern.as_ref().map(|pattern| &pattern.path))
            });
            let mut settings = RouteSettings::read(
                route,
                defaults,
                pattern.as_ref().map(|pattern| &pattern.path),
            );
            if matches!(policy, Some(RoutePolicy::Public)) {
                settings.remove_principal_limits(route);
            }
            let rewrite = route.section("rewrite", PathRewrite::read);
            let pattern = pattern?;
            if rewrite
                .as_ref()
                .is_some_and(|rewrite| !rewrite.fits(&pattern.path.template))
            {
                let detail = "rewrite.strip must be the beginning of path, in whole segments";
                route.fail("invalid_choice", detail);
            }
            // The value of a key that exists has been reported if it is invalid.
            if targets.is_none() && answer.is_none() {
                return None;
            }
            Some(Self {
                name: name
                    .unwrap_or_else(|| format!("{} {}", pattern.methods, pattern.path.template)),
                targets: targets.unwrap_or_default(),
                answer: answer.map(Arc::new),
                policy: policy?,
                rewrite,
                mirror: route
                    .section("mirror", |section| MirrorConfig::read(section, upstreams))
                    .map(Box::new),
                settings,
                pattern,
            })
        })
    }
}

/// Checks that a route has exactly one destination.
fn check_destination(route: &Object<'_>) {
    let destinations = ["upstream", "redirect", "respond"];
    match destinations
        .into_iter()
        .filter(|key| route.has(key))
        .count()
    {
        0 => route.fail("missing_field", "must have upstream, redirect or respond"),
        1 => {}
        _ => route.fail(
            "conflicting_fields",
            "must have one of upstream, redirect and respond",
        ),
    }
    if !route.has("upstream") && route.has("rewrite") {
        route.fail(
            "conflicting_fields",
            "rewrite is for routes with an upstream",
        );
    }
}

fn read_pattern(route: &Object<'_>) -> Option<RoutePattern> {
    let path = route.required("path", |field| {
        PathPattern::parse(field.string_as(|| json!({ "type": "string", "pattern": "^/" }))?)
            .or_else(|detail| field.fail("invalid_format", detail).ok_or(()))
            .ok()
    });
    let ignore_case = route.or("ignore_case", false, |field| field.boolean());
    let methods = route.required("methods", |field| {
        let all = field.non_empty_array(|item| {
            let name = item.string_as(MethodSet::schema)?;
            let known = if name == "*" {
                Some(MethodSet::ALL)
            } else {
                MethodSet::named(name)
            };
            known.or_else(|| {
                let detail = format!(
                    "must be a registered method such as {}, or * for all",
                    MethodSet::COMMON
                );
                item.fail("invalid_choice", detail)
            })
        })?;
        Some(all.into_iter().fold(MethodSet::default(), MethodSet::union))
    });
    let hosts = route.list("hosts", |item| {
        HostPattern::parse(item.string()?).or_else(|| {
            item.fail(
                "invalid_format",
                "must be a name such as example.com or *.example.com",
            )
        })
    });
    let headers = route.section("headers", |section| Some(read_conditions(section, true)));
    let queries = route.section("query", |section| Some(read_conditions(section, false)));
    Some(RoutePattern {
        hosts,
        path: PathPattern {
            ignore_case,
            ..path?
        },
        methods: methods?,
        headers: headers.unwrap_or_default(),
        queries: queries.unwrap_or_default(),
    })
}

/// Reads `{ name = "value" }`, or `{ name = true }` for any value.
fn read_conditions(section: &Object<'_>, of_headers: bool) -> Vec<MatchCondition> {
    section.entries(|name, field| {
        if of_headers && HeaderName::from_bytes(name.as_bytes()).is_err() {
            return field.fail("invalid_format", "is not the name of a header");
        }
        let name = match of_headers {
            true => headers::folded(name),
            false => name.to_owned(),
        };
        let value = if field.is_true() {
            None
        } else if matches!(field.value(), Value::String(_)) {
            Some(field.text(0..=1024)?)
        } else {
            return field.fail("invalid_type", "must be a string, or true for any value");
        };
        Some(MatchCondition { name, value })
    })
}

/// Reads `"name"`, or `{ name = weight, other = weight }`.
fn read_targets(field: Field<'_>, upstreams: &[UpstreamConfig]) -> Option<Vec<RouteTarget>> {
    let find = |name: &str, field: Field<'_>| find_upstream(upstreams, name, field);
    if let Some(name) = field.if_string(|| json!({ "type": "string" })) {
        return Some(vec![RouteTarget {
            upstream: find(name, field)?,
            weight: 1,
        }]);
    }
    let Value::Object(entries) = field.value() else {
        return field.fail(
            "invalid_type",
            "must be the name of an upstream, or a table of names with their weights",
        );
    };
    let targets = field.object(|targets| {
        Some(targets.entries(|name, field| {
            Some(RouteTarget {
                upstream: find(name, field)?,
                weight: field.integer(0..=1000)?,
            })
        }))
    })?;
    if targets.len() < entries.len() {
        return None;
    }
    if targets.iter().all(|target| target.weight == 0) {
        return field.fail("out_of_range", "at least one weight must be more than 0");
    }
    Some(targets)
}

impl PathRewrite {
    fn read(section: &Object<'_>) -> Option<Self> {
        let path = |name: &'static str| {
            section.optional(name, |field| {
                let text = field.text(0..=1024)?;
                let plain =
                    text.is_empty() || PathPattern::parse(&text).is_ok_and(|path| !path.prefix);
                if plain && !text.ends_with('/') && !text.contains('{') {
                    return Some(text);
                }
                field.fail(
                    "invalid_format",
                    "must be empty or a path such as /v1, without a slash at its end",
                )
            })
        };
        let rewrite = Self {
            strip: path("strip").unwrap_or_default(),
            add: path("add").unwrap_or_default(),
        };
        Some(rewrite)
    }

    /// Returns whether `strip` consists of the first whole segments of the template.
    fn fits(&self, template: &str) -> bool {
        template
            .strip_prefix(&self.strip)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || self.strip.is_empty())
    }

    /// Returns the rewritten request target: `/api` and `/api/x?y` for `/v1` and `/v1/x?y` under `{
    /// strip = "/v1", add = "/api" }`, and `/` if nothing remains.
    #[must_use]
    pub fn apply(&self, target: &[u8]) -> Vec<u8> {
        // Equal to `strip`, apart from the case of a route with `ignore_case`.
        let rest = target.get(self.strip.len()..).unwrap_or_default();
        let mut rewritten = self.add.clone().into_bytes();
        if rewritten.is_empty() && !rest.starts_with(b"/") {
            rewritten.push(b'/');
        }
        rewritten.extend_from_slice(rest);
        rewritten
    }
}

#[cfg(test)]
mod tests {
    use postern_core::exit::Exit;

    use crate::config::Config;
    use crate::tests::{read_config, rows};

    /// Reads a route for `/v1x` with these additional lines.
    fn read(lines: &str) -> Result<Config, Exit> {
        let text = format!(
            "[[listen]]\naddress = \"127.0.0.1:0\"\n[upstream.origin]\naddresses = [\"127.0.0.1:1\"]\n\
             [[route]]\npath = \"/v1x\"\nmethods = [\"GET\"]\nupstream = \"origin\"\npolicy = \"public\"\n{lines}\n"
        );
        read_config(&text)
    }

    fn is_good(lines: &str) -> bool {
        read(lines).is_ok()
    }

    #[test]
    fn rewrite_strips_whole_segments_only() {
        assert!(is_good("rewrite = { strip = \"/v1x\" }"));
        assert!(is_good("rewrite = { add = \"/api\" }"));
        assert!(!is_good("rewrite = { strip = \"/v1\", add = \"/api\" }"));
    }

    #[test]
    fn rewrite_replaces_the_beginning_of_the_target() {
        for [strip, add, target, forwarded] in rows(
            "/v1x | /api | /v1x | /api
             /v1x | /api | /v1x?a=b | /api?a=b
             /v1x | | /v1x | /
             /v1x | | /v1x?a=b | /?a=b
             /v1x | /api | /v1x/a?b | /api/a?b
             /v1x | | /V1x/A | /A
             | /api | /v1x | /api/v1x",
        ) {
            let config = read(&format!(
                "rewrite = {{ strip = \"{strip}\", add = \"{add}\" }}"
            ));
            let rewrite = config.expect("reads").routes.remove(0).rewrite;
            let found = rewrite.expect("a rewrite").apply(target.as_bytes());
            assert_eq!(
                String::from_utf8_lossy(&found),
                forwarded,
                "{strip} {add} {target}"
            );
        }
    }

    #[test]
    fn framing_and_identity_headers_cannot_be_changed() {
        for table in ["request_headers", "response_headers"] {
            for change in [
                "set = { NAME = \"5\" }",
                "add = { NAME = \"5\" }",
                "remove = [\"NAME\"]",
            ] {
                let reads = |name: &str| {
                    is_good(&format!("{table} = {{ {} }}", change.replace("NAME", name)))
                };
                assert!(reads("X-Frame-Options"), "{table} {change}");
                let names = "Content-Length content_length transfer-encoding Transfer_Encoding Connection \
                    Keep-Alive TE Upgrade Host Expect X-Postern-Kind x_postern_subject \
                    X-Forwarded-For X-Request-Id traceparent";
                for name in names.split(' ') {
                    assert!(!reads(name), "{table} {change} {name}");
                }
            }
        }
    }
}
