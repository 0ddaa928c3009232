"""Measuring: starts servers, talks to them over HTTP only, never imports torch or SGLang."""
