"""The only room that speaks SQL. `contract` says what every store promises; `postgres` keeps it."""
