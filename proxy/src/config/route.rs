//! `[[route]]` and `[[group]]`: routes to upstreams.
//!
//! `Route::read` is not declared with `settings!`: the keys that a route may have depend on its
//! destination and its group.

use std::sync::Arc;

use ahash::AHashMap;
use http::HeaderName;
use postern_core::decode::{Field, Object, Value};
use postern_core::settings;
use postern_http::message::headers;
use serde_json::json;

use crate::config::upstream::find_upstream;
use crate::config::{HostPattern, MatchCondition, MethodSet, PathPattern, RoutePattern};
use crate::config::{
    MirrorConfig, RouteAnswer, RoutePolicy, RouteSettings, RouteTest, UpstreamConfig, Variable,
    policy,
};

/// `[[route]]`: a match, an upstream and a policy.
#[derive(Clone, Debug)]
pub struct Route {
    /// The path of its table in the file, such as `group.0.route.1`.
    pub place: String,
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

settings! {
    /// Prefix rewriting.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct PathRewrite(table) {
        /// Prefix to remove, in whole segments.
        ///
        /// Every path of the route begins with it.
        pub strip: String = "" => read_path_prefix,
        /// Prefix to add.
        pub add: String = "" => read_path_prefix,
    }
}

/// A `[[group]]`: a table whose keys its routes have unless they have their own, and the beginning of
/// their paths.
type RouteGroup<'a> = (&'a Object<'a>, &'a str);

struct RouteReader<'a> {
    root: &'a Object<'a>,
    upstreams: &'a [UpstreamConfig],
    defaults: &'a RouteSettings,
    routes: Vec<Route>,
    /// The offsets of the routes by name.
    names: AHashMap<String, usize>,
    /// Positions in `routes` by shape.
    shapes: AHashMap<String, Vec<usize>>,
}

/// Reads all routes and tests: first those of the root, then those of the groups. A route with an
/// unknown upstream or a duplicate name, or one that an earlier route shadows, is reported at its line.
pub(super) fn read_all(
    root: &Object<'_>,
    upstreams: &[UpstreamConfig],
    defaults: &RouteSettings,
) -> (Vec<Route>, Vec<RouteTest>) {
    let mut reader = RouteReader {
        root,
        upstreams,
        defaults,
        routes: Vec::new(),
        names: AHashMap::new(),
        shapes: AHashMap::new(),
    };
    root.list("route", |field| reader.add(field, None));
    let mut tests = root.list("test", |field| read_test(field, upstreams));
    let of_groups = root.list("group", |field| field.object(|it| reader.add_group(it)));
    tests.extend(of_groups.into_iter().flatten());
    for test in &tests {
        let mut names = test.route.iter();
        if let Some(name) = names.find(|name| !reader.names.contains_key(*name)) {
            let detail = format!("there is no route called {name}");
            root.fail_at(&format!("{}.route", test.place), "unknown_route", detail);
        }
    }
    (reader.routes, tests)
}

impl RouteReader<'_> {
    /// Reads the routes of a group, and returns its tests.
    fn add_group(&mut self, group: &Object<'_>) -> Option<Vec<RouteTest>> {
        let prefix = group.or("prefix", String::new(), read_prefix);
        for key in ["name", "path"] {
            let detail = "is a key of routes; the key of groups is `prefix`";
            group.refuse(key, "invalid_choice", detail);
        }
        let mut count = 0;
        group.list_like("route", self.root, |field| {
            count += 1;
            self.add(field, Some((group, prefix.as_str())))
        });
        if count == 0 {
            group.fail("missing_field", "must have routes: [[group.route]]");
            // No route has asked for the other keys.
            group.entries(|_, _| Some(()));
        }
        Some(group.list_like("test", self.root, |it| read_test(it, self.upstreams)))
    }

    fn add(&mut self, field: Field<'_>, group: Option<RouteGroup<'_>>) -> Option<()> {
        let route = Route::read(field, group, self.upstreams, self.defaults)?;
        let offset = field.node().offset;
        if let Some(first) = self.names.insert(route.name.clone(), offset) {
            let detail = format!("a route is already called {}", route.name);
            field.conflict::<()>("duplicate_name", detail, first);
        }
        let same = self.shapes.entry(route.pattern.shape()).or_default();
        let mut earlier = same.iter().map(|at| &self.routes[*at]);
        if let Some(by) = earlier.find(|by| by.pattern.covers(&route.pattern)) {
            let detail = format!("can never be taken: {} takes all its requests", by.name);
            let by = self.root.offset_at(&by.place).unwrap_or_default();
            field.conflict::<()>("unreachable_route", detail, by);
        }
        same.push(self.routes.len());
        self.routes.push(route);
        Some(())
    }
}

fn read_test(field: Field<'_>, upstreams: &[UpstreamConfig]) -> Option<RouteTest> {
    field.object(|table| RouteTest::read(table, field.place(), upstreams))
}

/// Reads the beginning of the paths of a group.
fn read_prefix(field: Field<'_>) -> Option<String> {
    let text = field.string_as(|| json!({ "type": "string", "pattern": "^/" }))?;
    match PathPattern::parse(text) {
        Ok(path) if !path.prefix && !text.ends_with('/') => Some(text.to_owned()),
        Ok(_) => field.fail("invalid_format", "must not end with / or /*"),
        Err(detail) => field.fail("invalid_format", detail),
    }
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
        group: Option<RouteGroup<'_>>,
        upstreams: &[UpstreamConfig],
        defaults: &RouteSettings,
    ) -> Option<Self> {
        let (group, prefix) = group.unzip();
        field.object_within(group, |route| {
            let pattern = read_pattern(route, prefix.unwrap_or_default());
            let name = route.optional("name", |field| field.text(1..=100));
            let is_forwarded = is_forwarded(route);
            let targets = match is_forwarded {
                true => route.optional("upstream", |field| read_targets(field, upstreams)),
                false => None,
            };
            let answer = match is_forwarded {
                true => None,
                false => RouteAnswer::read(route, pattern.as_ref()),
            };
            let path = pattern.as_ref().map(|pattern| &pattern.path);
            let policy = route.required("policy", |field| policy::read(field, path));
            let mut settings = RouteSettings::read(route, defaults, path);
            if matches!(policy, Some(RoutePolicy::Public)) {
                settings.remove_principal_limits(route);
            }
            let rewrite = match is_forwarded {
                true => route.section("rewrite", PathRewrite::read),
                false => None,
            };
            let pattern = pattern?;
            let fits = |rewrite: &PathRewrite| rewrite.fits(&pattern.path.template);
            if !rewrite.iter().all(fits) {
                let detail = "rewrite.strip must be the beginning of path, in whole segments";
                route.fail("invalid_choice", detail);
            }
            // The value of a key that exists has been reported if it is invalid.
            if targets.is_none() && answer.is_none() {
                return None;
            }
            Some(Self {
                place: field.place(),
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

/// Returns whether the destination of a route is an upstream. It has exactly one, of its own or else
/// of its group.
fn is_forwarded(route: &Object<'_>) -> bool {
    let keys = ["upstream", "redirect", "respond"];
    let all: Vec<_> = keys.into_iter().filter(|key| route.has(key)).collect();
    let own: Vec<_> = keys.into_iter().filter(|key| route.has_own(key)).collect();
    let destinations = if own.is_empty() { all } else { own };
    match destinations.len() {
        0 => route.fail("missing_field", "must have upstream, redirect or respond"),
        1 => {}
        _ => route.fail(
            "conflicting_fields",
            "must have one of upstream, redirect and respond",
        ),
    }
    let is_forwarded = destinations.contains(&"upstream");
    if !is_forwarded && route.has_own("rewrite") {
        route.fail(
            "conflicting_fields",
            "rewrite is for routes with an upstream",
        );
    }
    is_forwarded
}

settings! {
    fn read_pattern(route, prefix: &str) -> RoutePattern {
        /// `/v1/{id}/*`: `{id}` is one segment, `/*` the rest, if any.
        path => |field| read_path(field.typed("pattern"), prefix),
        /// Whether literal segments of the path match in any case.
        ignore_case = false => |field| field.boolean(),
        /// Registered methods, `PURGE`; or `["*"]`: any but `TRACE` and `CONNECT`.
        methods => |field| {
            let all = field.typed("list").non_empty_array(read_methods)?;
            Some(all.into_iter().fold(MethodSet::default(), MethodSet::union))
        },
        /// Host names, `*.example.com` for subdomains.
        hosts = { Some(Vec::new()) } ("any") => |field| field.array(read_host),
        /// Header fields that must be present, in any spelling.
        headers = { Some(Vec::new()) } ("none")
            => |field| field.object(|section| Some(read_conditions(section, true))),
        /// Query parameters that must be present, compared decoded.
        queries as query = { Some(Vec::new()) } ("none")
            => |field| field.object(|section| Some(read_conditions(section, false))),
    } => RoutePattern {
        hosts,
        path: PathPattern { ignore_case, ..path },
        methods,
        headers,
        queries,
    }
}

/// Reads the path of a route below the prefix of its group.
fn read_path(field: Field<'_>, prefix: &str) -> Option<PathPattern> {
    let own = field.string_as(|| json!({ "type": "string", "pattern": "^(/|$)" }))?;
    let path = match own.is_empty() || own.starts_with('/') {
        true => format!("{prefix}{own}"),
        false => own.to_owned(),
    };
    match PathPattern::parse(&path) {
        Ok(path) => Some(path),
        Err(detail) => field.fail("invalid_format", detail),
    }
}

/// Reads the name of a method, or `*` for all.
fn read_methods(item: Field<'_>) -> Option<MethodSet> {
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
}

fn read_host(item: Field<'_>) -> Option<HostPattern> {
    HostPattern::parse(item.string()?).or_else(|| {
        item.fail(
            "invalid_format",
            "must be a name such as example.com or *.example.com",
        )
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

fn read_path_prefix(field: Field<'_>) -> Option<String> {
    let text = field.typed("path").text(0..=1024)?;
    let plain = text.is_empty() || PathPattern::parse(&text).is_ok_and(|path| !path.prefix);
    if plain && !text.ends_with('/') && !text.contains('{') {
        return Some(text);
    }
    field.fail(
        "invalid_format",
        "must be empty or a path such as /v1, without a slash at its end",
    )
}

impl PathRewrite {
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
mod tests;
