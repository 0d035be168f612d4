"""The cluster port over the API server: pods started, deleted and watched, and what their objects mean."""
