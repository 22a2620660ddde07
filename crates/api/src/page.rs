//! The web page. It is embedded in the program, loads nothing from other hosts and needs no build step.
//!
//! **Invariant:** the page inserts data of jobs as text, never as markup. The headers in `guard.rs` make the browser
//! refuse everything else.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// Returns the routes of the page's files.
pub(crate) fn routes<State: Clone + Send + Sync + 'static>() -> Router<State> {
    FILES
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            router.route(
                path,
                get(move || async move { ([(CONTENT_TYPE, kind)], text) }),
            )
        })
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

const FILES: [(&str, &str, &str); 12] = [
    ("/", HTML, include_str!("page/page.html")),
    ("/page.css", CSS, include_str!("page/page.css")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/main.js", SCRIPT, include_str!("page/main.js")),
    ("/api.js", SCRIPT, include_str!("page/api.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/daemon.js", SCRIPT, include_str!("page/daemon.js")),
    ("/detail.js", SCRIPT, include_str!("page/detail.js")),
    ("/format.js", SCRIPT, include_str!("page/format.js")),
    ("/history.js", SCRIPT, include_str!("page/history.js")),
    ("/jobs.js", SCRIPT, include_str!("page/jobs.js")),
    ("/submit.js", SCRIPT, include_str!("page/submit.js")),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_asks_nobody_else() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes < FIRST_PAINT_BYTES_MAX, "{bytes}");
        for (path, _, text) in FILES {
            for way in [
                "\"//", "'//", "(//", "`//", "url(", "import(", "ws://", "wss://",
            ] {
                assert!(!text.contains(way), "{path} has {way}");
            }
            let links: Vec<_> = text
                .match_indices("http")
                .map(|(at, _)| &text[at..])
                .collect();
            // The namespaces of SVG, from which nothing is loaded.
            assert!(
                links
                    .iter()
                    .all(|link| link.starts_with("http://www.w3.org/2000/svg")),
                "{path}: {links:?}"
            );
        }
    }

    #[test]
    fn nothing_of_the_page_makes_markup_of_text() {
        for (path, _, text) in FILES {
            for way in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "style=",
                "onerror",
                "srcdoc",
                "DOMParser",
                "createContextualFragment",
                "setHTML",
                "javascript:",
                "new Function",
            ] {
                assert!(!text.contains(way), "{path} has {way}");
            }
        }
    }

    const FIRST_PAINT_BYTES_MAX: usize = 200_000;
}
