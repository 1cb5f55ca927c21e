use proptest::prelude::*;

use super::*;
use crate::config::{HostPattern, PathPattern, PathSegment};
use crate::tests::rows;

fn pattern(text: &str) -> RoutePattern {
    let mut words = text.split(' ');
    let methods = words.next().expect("methods").split(',');
    let methods = methods.map(|name| match name {
        "*" => MethodSet::ALL,
        name => MethodSet::of(name).expect("a method"),
    });
    let methods = methods.fold(MethodSet::default(), MethodSet::union);
    let (mut hosts, mut headers, mut queries) = (Vec::new(), Vec::new(), Vec::new());
    let mut path = PathPattern::parse(words.next().expect("a path")).expect("a template");
    for word in words {
        let condition = |text: &str| {
            let (name, value) = text
                .split_once('=')
                .map_or((text, None), |(name, value)| (name, Some(value)));
            MatchCondition {
                name: name.to_owned(),
                value: value.map(str::to_owned),
            }
        };
        match word.split_at(1) {
            ("@", host) => hosts.push(HostPattern::parse(host).expect("a host")),
            ("+", header) => headers.push(condition(header)),
            ("?", query) => queries.push(condition(query)),
            ("!", "") => path.ignore_case = true,
            _ => panic!("{word}"),
        }
    }
    RoutePattern {
        hosts,
        path,
        methods,
        headers,
        queries,
    }
}

fn one_header(name: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, http::HeaderValue::from_static("1"));
    headers
}

fn find(routes: &[&str], method: &str, host: &str, target: &str) -> Option<usize> {
    let router = RouteMatcher::new(routes.iter().map(|text| pattern(text)).collect());
    let (path, query) = target
        .split_once('?')
        .map_or((target, None), |(path, query)| (path, Some(query)));
    let headers = one_header("x_beta");
    router.find(&RouteRequest {
        host,
        path,
        query,
        method,
        headers: &headers,
    })
}

#[test]
fn star_matches_every_method_in_its_own_spelling() {
    let routes = ["PROPFIND,GET /a", "* /b"];
    for (method, path, route) in [
        ("PROPFIND", "/a", Some(0)),
        ("REPORT", "/a", None),
        ("BREW", "/a", None),
        ("QUERY", "/b", Some(1)),
        ("BREW", "/b", Some(1)),
        ("get", "/b", None),
        ("PropFind", "/b", None),
        ("TRACE", "/b", None),
    ] {
        assert_eq!(find(&routes, method, "h", path), route, "{method} {path}");
    }
    let [named, all] = routes.map(|text| pattern(text).methods);
    let actual = (named.allow(), named.to_string());
    assert_eq!(actual, ("GET, PROPFIND".into(), named.allow()));
    assert_eq!(all.to_string(), "*");
    assert_eq!(all.allow(), "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
}

/// A query condition is about what upstreams decode.
#[test]
fn escaped_parameter_satisfies_a_query_condition() {
    let find = |condition: &str, query: &str| {
        let narrow = format!("GET /a ?{condition}");
        find(&["GET /a", &narrow], "GET", "h", &format!("/a?{query}")) == Some(1)
    };
    for [condition, query, is_found] in rows(
        "action=export | action=export | yes
         action=export | %61ction=export | yes
         action=export | action=%65xpor%74 | yes
         action=export | x=1&action=other&%61ction=export | yes
         action | %61ction | yes
         action | action=%ff | yes
         a=b+c | a=b+c | yes
         a=b+c | a=b%2Bc | yes
         a=100% | a=100% | yes
         a=100% | a=100%25 | yes
         a=\u{e9} | a=%C3%A9 | yes
         a= | a | yes
         action=export | Action=export | no
         action=export | %2561ction=export | no
         action=export | action=export2 | no
         action | xaction | no
         a=b | a | no",
    ) {
        let found = find(&condition, &query);
        assert_eq!(found, is_found == "yes", "{condition} {query}");
    }
    let spaced = RoutePattern {
        queries: vec![MatchCondition {
            name: "a".to_owned(),
            value: Some("b c".to_owned()),
        }],
        ..pattern("GET /a")
    };
    for query in ["a=b+c", "a=b%20c"] {
        let request = RouteRequest {
            host: "h",
            path: "/a",
            query: Some(query),
            method: "GET",
            headers: &HeaderMap::new(),
        };
        let holds = spaced.matches_conditions(&request, &QueryParameters::default());
        assert!(holds, "{query}");
    }
}

#[test]
fn malformed_template_is_rejected() {
    for template in [
        "a", "", "/a//b", "/a*", "/*/a", "/{}", "/{a", "/a{b}", "/%61", "/a b", "/..", "/a//*",
        "/a/;",
    ] {
        assert!(PathPattern::parse(template).is_err(), "{template}");
    }
}

/// Precedence written down as a sort key, over all routes one by one.
fn naive(patterns: &[RoutePattern], request: &RouteRequest<'_>) -> Option<usize> {
    let host = request.host.to_ascii_lowercase();
    let segments: Vec<&str> = request.path[1..].split('/').collect();
    let host_rank = |pattern: &RoutePattern| {
        if pattern.hosts.is_empty() {
            return Some((2, 0));
        }
        let ranks = pattern.hosts.iter().filter_map(|pattern| match pattern {
            HostPattern::Exact(name) => (*name == host).then_some((0, 0)),
            HostPattern::Subdomains(name) => host
                .ends_with(&format!(".{name}"))
                .then_some((1, usize::MAX - name.len())),
        });
        ranks.min()
    };
    let path_rank = |pattern: &RoutePattern| {
        let own = &pattern.path.segments;
        let fits = if pattern.path.prefix {
            segments.len() >= own.len()
        } else {
            segments.len() == own.len()
        };
        let mut rank = Vec::new();
        for (own, segment) in own.iter().zip(&segments) {
            match own {
                PathSegment::Literal(text) if text == segment => rank.push(0),
                PathSegment::Literal(text)
                    if pattern.path.ignore_case && text.eq_ignore_ascii_case(segment) =>
                {
                    rank.push(0);
                }
                PathSegment::Param(_) if !segment.is_empty() => rank.push(1),
                PathSegment::Literal(_) | PathSegment::Param(_) => return None,
            }
        }
        rank.push(if pattern.path.prefix { 3 } else { 2 });
        fits.then_some((rank, pattern.path.ignore_case))
    };
    let method = MethodSet::of(request.method)?;
    let key = |(index, pattern): (usize, &RoutePattern)| {
        let holds = pattern.methods.contains(method)
            && pattern.matches_conditions(request, &QueryParameters::default());
        let (host, path) = host_rank(pattern).zip(path_rank(pattern))?;
        holds.then(|| (host, path, usize::MAX - pattern.condition_count(), index))
    };
    let keys = patterns.iter().enumerate().filter_map(key);
    keys.min().map(|(.., index)| index)
}

prop_compose! {
    fn a_route()(
        methods in proptest::sample::select(vec!["GET", "POST", "GET,POST"]),
        segments in proptest::collection::vec(proptest::sample::select(vec!["a", "b", "c", "{x}"]), 0..4),
        end in proptest::sample::select(vec!["", "/", "/*", "/* !", "/B !"]),
        extra in proptest::sample::select(
            vec!["", "", " @a.b", " @*.b", " @*.a.b", " @a.b @*.c", " +x-beta", " ?v=1", " +x-beta=1 ?v"]),
    ) -> String {
        let path: String = segments.iter().map(|segment| format!("/{segment}")).collect();
        let path = format!("{path}{end}");
        format!("{methods} {}{extra}", if path.is_empty() { "/" } else { &path })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn trie_agrees_with_a_naive_matcher(
        routes in proptest::collection::vec(a_route(), 0..12),
        path in "(/[abcB]){0,4}/?",
        host in proptest::sample::select(vec!["a.b", "x.a.b", "A.B", "x.b", "q", "z.c"]),
        method in proptest::sample::select(vec!["GET", "POST", "PUT", "X"]),
        query in proptest::sample::select(vec![None, Some("v=1"), Some("w&v=2")]),
    ) {
        let patterns: Vec<RoutePattern> = routes.iter().map(|text| pattern(text)).collect();
        let headers = one_header("x-beta");
        let path = if path.is_empty() { "/" } else { &path };
        let request = RouteRequest { host, path, query, method, headers: &headers };
        prop_assert_eq!(RouteMatcher::new(patterns.clone()).find(&request), naive(&patterns, &request));
    }
}
