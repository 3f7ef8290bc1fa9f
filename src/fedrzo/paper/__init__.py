"""The paper's figures and tables, its claims checked, and the page that shows them; what they run is elsewhere."""
