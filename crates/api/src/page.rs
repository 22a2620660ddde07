//! The page, which is part of the program: no other host is asked for any of it.

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;

/// The files of the page.
pub(crate) fn routes<State: Clone + Send + Sync + 'static>() -> Router<State> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(move || async move { ([(CONTENT_TYPE, kind)], text) }))
    })
}

const FILES: [(&str, &str, &str); 1] = [("/", "text/html; charset=utf-8", include_str!("page/page.html"))];
