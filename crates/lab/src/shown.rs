//! Results as answers: what every kind here is wrapped in.

/// A result as a [`vmeter_session::Answer`].
#[derive(Debug)]
pub struct Shown<T>(pub T);
