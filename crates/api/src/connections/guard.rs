//! Checks each request before it is processed, and adds security headers to each response.
//!
//! A page of another site cannot read the responses, but it may try to send requests, or have its own name resolve to
//! this host (DNS rebinding). Therefore `Host` must be a name of the loopback interface or the public name of a reverse
//! proxy, and `Origin` must be that same host. The browser's `Sec-Fetch-Site` must agree. The checks apply to the Unix
//! socket too, because ssh may forward it. Proxy headers (`Forwarded`, `X-Forwarded-*`) are never read, so a client
//! gains nothing by sending them.

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::connections::host_name::{PublicName, is_loopback};
use crate::connections::token::Token;
use crate::problem::Problem;

/// How a listener authenticates its user, and the names by which clients may address it.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// Only the user can open the socket.
    Socket,
    /// Each API request must contain the token.
    Token {
        token: Token,
        /// The public name of a reverse proxy, which uses HTTPS with its clients.
        public_name: Option<PublicName>,
    },
}

impl Proof {
    /// Returns the scheme of the page's URL for this `Host`, or `None` if the listener does not have that name.
    fn scheme(&self, host: &str) -> Option<&'static str> {
        match self {
            Self::Token {
                public_name: Some(name),
                ..
            } if name.matches(host) => Some("https://"),
            Self::Socket | Self::Token { .. } => is_loopback(host).then_some("http://"),
        }
    }
}

/// Passes on requests that come from the user and rejects all others.
pub(crate) async fn guard(State(proof): State<Proof>, request: Request, next: Next) -> Response {
    let mut response = match admit(&proof, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let headers = response.headers_mut();
    for (name, value) in SECURITY {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        response
            .headers_mut()
            .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn admit(proof: &Proof, request: &Request) -> Result<(), Problem> {
    let headers = request.headers();
    let host = one(headers, &HOST).unwrap_or_default();
    let is_host = |authority: &str| authority.eq_ignore_ascii_case(host);
    let is_consistent = request
        .uri()
        .authority()
        .is_none_or(|authority| is_host(authority.as_str()));
    let Some(scheme) = proof.scheme(host).filter(|_| is_consistent) else {
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, OTHER_HOST));
    };
    let is_api = request.uri().path().starts_with(API);
    let is_own =
        one(headers, &ORIGIN).is_none_or(|origin| origin.strip_prefix(scheme).is_some_and(is_host));
    // The page itself contains no data of the user, so other sites may link to it.
    let is_visit = !is_api
        && *request.method() == Method::GET
        && one(headers, &FETCH_MODE) == Some("navigate")
        && one(headers, &FETCH_DEST) == Some("document");
    let is_near =
        one(headers, &FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    let are_plain = [&ORIGIN, &FETCH_SITE]
        .iter()
        .all(|name| headers.get_all(*name).iter().count() <= 1);
    if !is_own || !are_plain || !(is_near || is_visit) {
        return Err(Problem::new(
            StatusCode::FORBIDDEN,
            "the request is from another site",
        ));
    }
    if let Proof::Token { token, .. } = proof
        && is_api
    {
        let said = one(headers, &AUTHORIZATION).and_then(|said| said.strip_prefix("Bearer "));
        if !said.is_some_and(|said| token.is(said.trim().as_bytes())) {
            let text = "no token, or not the token in the file 'token' in the jobs directory";
            return Err(Problem::new(StatusCode::UNAUTHORIZED, text));
        }
    }
    Ok(())
}

/// Returns the value of a header that occurs exactly once.
fn one<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Path prefix of the requests that need the token.
const API: &str = "/api/";
/// The error message for a refused `Host`.
const OTHER_HOST: &str = "the Host header must be localhost, 127.0.0.1, [::1] or the name of a proxy (zmove runner \
                          --http-name)";

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The browser loads and runs only content of this origin, and other sites cannot embed the page in a frame. A script
/// that tries to insert text as markup fails.
const SECURITY: [(HeaderName, &str); 7] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn answer(proof: &Proof, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = axum::http::Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        admit(proof, &request.body(Body::empty()).unwrap())
            .map_or_else(|problem| problem.status, |()| 200)
    }

    fn get(headers: &[(&str, &str)]) -> u16 {
        answer(&Proof::Socket, "GET", "/api/v1/jobs", headers)
    }

    #[test]
    fn only_names_of_the_loopback_are_hosts() {
        for host in [
            "localhost",
            "localhost:8470",
            "127.0.0.1:1",
            "[::1]",
            "[::1]:80",
            "LOCALHOST",
        ] {
            assert_eq!(get(&[("host", host)]), 200, "{host}");
        }
        let bad = [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil:80",
            "localhost:",
            "localhost:a",
            "",
        ];
        for host in bad.into_iter().chain([
            "[::1",
            "[::2]",
            "::1",
            "a@localhost",
            "10.0.0.1",
            "localhost:1:2",
        ]) {
            assert_eq!(get(&[("host", host)]), 421, "{host}");
        }
        assert_eq!(
            (
                get(&[]),
                get(&[("host", "localhost"), ("host", "localhost")])
            ),
            (421, 421)
        );
        let absolute = "http://evil.example/api/v1/jobs";
        assert_eq!(
            answer(&Proof::Socket, "GET", absolute, &[("host", "localhost")]),
            421
        );
    }

    #[test]
    fn no_request_of_another_site_gets_through() {
        let host = ("host", "localhost:80");
        assert_eq!(get(&[host, ("origin", "http://localhost:80")]), 200);
        let origins = [
            "http://evil.example",
            "null",
            "http://localhost:81",
            "https://localhost:80",
            "localhost:80",
            "",
        ];
        for origin in origins {
            assert_eq!(get(&[host, ("origin", origin)]), 403, "{origin}");
        }
        let own = ("origin", "http://localhost:80");
        assert_eq!(get(&[host, own, ("origin", "http://evil.example")]), 403);
        for (site, status) in [
            ("same-origin", 200),
            ("none", 200),
            ("same-site", 403),
            ("cross-site", 403),
        ] {
            assert_eq!(get(&[host, ("sec-fetch-site", site)]), status, "{site}");
        }
        let visit = [
            host,
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
        ];
        let framed = [&visit[..], &[("sec-fetch-dest", "iframe")]].concat();
        let visit = [&visit[..], &[("sec-fetch-dest", "document")]].concat();
        let of = |path, headers: &[(&str, &str)]| answer(&Proof::Socket, "GET", path, headers);
        assert_eq!(
            (
                of("/", &visit),
                of("/", &framed),
                of("/api/v1/jobs", &visit)
            ),
            (200, 403, 403)
        );
    }

    /// Returns the proof of a listener with a token, and the value of `Authorization` that satisfies it.
    fn token(public_name: Option<&str>) -> (Proof, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let proof = Proof::Token {
            token: Token::renewed(&path).unwrap(),
            public_name: public_name.map(|name| name.parse().unwrap()),
        };
        let word = std::fs::read_to_string(path).unwrap();
        (proof, format!("Bearer {}", word.trim()))
    }

    #[test]
    fn over_tcp_the_api_needs_the_token() {
        let (proof, bearer) = token(None);
        let word = bearer.strip_prefix("Bearer ").unwrap();
        let of = |path, said: &str| {
            answer(
                &proof,
                "GET",
                path,
                &[("host", "localhost"), ("authorization", said)],
            )
        };
        assert_eq!(of("/api/v1/jobs", &bearer), 200);
        for said in [
            "",
            "Bearer ",
            "Bearer x",
            word,
            &format!("Basic {word}"),
            &format!("{bearer}0"),
        ] {
            assert_eq!(of("/api/v1/jobs", said), 401, "{said}");
        }
        assert_eq!(of("/", ""), 200);
    }

    #[test]
    fn behind_a_proxy_host_and_origin_are_its_public_name_and_the_api_needs_the_token() {
        let (proof, bearer) = token(Some("dtn.example.org:8443"));
        let of = |headers: &[(&str, &str)]| {
            let headers = [headers, &[("authorization", &*bearer)]].concat();
            answer(&proof, "POST", "/api/v1/jobs", &headers)
        };
        let host = ("host", "dtn.example.org:8443");
        assert_eq!(of(&[host]), 200);
        assert_eq!(of(&[host, ("origin", "https://dtn.example.org:8443")]), 200);
        assert_eq!(answer(&proof, "GET", "/api/v1/jobs", &[host]), 401);
        let local = ("host", "127.0.0.1:8470");
        assert_eq!(of(&[local, ("origin", "http://127.0.0.1:8470")]), 200);
        for origin in [
            "http://dtn.example.org:8443",
            "https://dtn.example.org",
            "https://evil.example",
            "http://127.0.0.1:8470",
            "null",
        ] {
            assert_eq!(of(&[host, ("origin", origin)]), 403, "{origin}");
        }
        assert_eq!(of(&[host, ("sec-fetch-site", "cross-site")]), 403);
        for other in [
            "dtn.example.org",
            "dtn.example.org:8444",
            "a.dtn.example.org:8443",
        ] {
            assert_eq!(of(&[("host", other)]), 421, "{other}");
        }
        let (direct, _) = token(None);
        for proof in [Proof::Socket, direct] {
            assert_eq!(answer(&proof, "GET", "/", &[host]), 421, "{proof:?}");
        }
    }

    #[test]
    fn headers_of_a_proxy_change_nothing() {
        let (proof, bearer) = token(Some("dtn.example.org"));
        let of = |headers: &[(&str, &str)]| {
            let forwarded = [
                ("forwarded", "for=127.0.0.1;host=localhost;proto=http"),
                ("x-forwarded-for", "127.0.0.1"),
                ("x-forwarded-host", "localhost"),
                ("x-forwarded-proto", "http"),
            ];
            answer(
                &proof,
                "GET",
                "/api/v1/jobs",
                &[headers, &forwarded].concat(),
            )
        };
        let host = ("host", "dtn.example.org");
        let bearer = ("authorization", &*bearer);
        assert_eq!(of(&[host, bearer]), 200);
        assert_eq!(of(&[host]), 401);
        assert_eq!(of(&[("host", "evil.example"), bearer]), 421);
        assert_eq!(of(&[host, bearer, ("origin", "http://localhost")]), 403);
        assert_eq!(
            of(&[host, bearer, ("origin", "http://dtn.example.org")]),
            403
        );
    }
}
