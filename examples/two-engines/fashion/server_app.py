"""The server on Flower."""

from fashion import task
from secureafl.engines.flower import server_app

app = server_app(lambda context: task.initial_model(), evaluate=task.accuracy)
